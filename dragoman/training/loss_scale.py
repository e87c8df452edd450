"""The factor that keeps fp16 gradients from vanishing (FACTS §4)."""

from dataclasses import dataclass

FIRST_SCALE = 2.0**14
GOOD_STEPS_TO_DOUBLE = 2_000


@dataclass
class LossScale:
    """Halves when gradients overflow, doubles after 2,000 good steps; stays at 1 unless training in fp16."""

    is_dynamic: bool
    value: float = 1.0
    num_good_steps: int = 0
    num_skipped_steps: int = 0

    @classmethod
    def start(cls, precision: str) -> "LossScale":
        """The scale a run begins with."""
        return cls(is_dynamic=True, value=FIRST_SCALE) if precision == "fp16" else cls(is_dynamic=False)

    def update(self, is_finite: bool) -> None:
        """Learns from one step whether the scale was right."""
        if not self.is_dynamic:
            return
        if not is_finite:
            self.value /= 2
            self.num_good_steps = 0
            self.num_skipped_steps += 1
            return
        self.num_good_steps += 1
        if self.num_good_steps == GOOD_STEPS_TO_DOUBLE:
            self.value *= 2
            self.num_good_steps = 0
