"""Length penalties of beam search: transformers divides by length^alpha, we divide by ((5 + length) / 6)^alpha.

No alpha makes them equal. The one used here makes them grow equally at sentences of 20 subwords.
"""

_LENGTH = 20
_RATIO = _LENGTH / (5 + _LENGTH)


def to_huggingface_penalty(alpha: float) -> float:
    """Returns the exponent for transformers that is nearest to ours."""
    return round(alpha * _RATIO, 4)


def from_huggingface_penalty(alpha: float) -> float:
    """Returns our exponent that is nearest to the one of transformers."""
    return round(alpha / _RATIO, 4)
