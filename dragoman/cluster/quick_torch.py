"""Imports torch in two thirds of the time; modules of a program that must start quickly import it from here first.

A third of the import prepares tensors without data, which only compilers use; they can import that part later.
Some of the rest is Python's search for garbage among a million new objects, of which none is garbage.
"""

import gc
import sys
from types import ModuleType

_UNUSED_PART = "torch._meta_registrations"
_is_first = "torch" not in sys.modules
_is_collecting = gc.isenabled()
gc.disable()
if _is_first:
    sys.modules[_UNUSED_PART] = ModuleType(_UNUSED_PART)
try:
    import torch
finally:
    if _is_first:
        del sys.modules[_UNUSED_PART]
    gc.freeze()
    if _is_collecting:
        gc.enable()

__all__ = ["torch"]
