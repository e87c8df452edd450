"""What every table of a TOML file shares: typed, frozen, no unknown keys; and the types of values in it."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

# Strict: `true` is not 1, and "5" is not 5.
Fraction = Annotated[float, Field(ge=0, lt=1, strict=True)]
Count = Annotated[int, Field(ge=1, strict=True)]
CountOrZero = Annotated[int, Field(ge=0, le=2**63 - 1, strict=True)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
Switch = Annotated[bool, Field(strict=True)]


class Section(BaseModel):
    """A table of the TOML file: typed, frozen, no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
