"""What one stage of the self-test found."""

from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["passed", "warned", "failed", "skipped"]


@dataclass(frozen=True)
class StageResult:
    """The verdict of a stage, in one or two sentences, and its figures."""

    state: State
    """"warned": results are right, but slower or larger than planned; only "failed" fails the whole test."""
    why: str
    figures: dict[str, Any] = field(default_factory=dict)
