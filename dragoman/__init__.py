"""dragoman: trains neural translation models and tells the truth about the run."""

__version__ = "0.1.0"
