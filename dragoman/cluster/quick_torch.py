"""Imports torch faster; modules of a program that must start quickly import it from here first.

Much of the import is Python's search for garbage among a million new objects, of which none is garbage.
"""

import gc

_is_collecting = gc.isenabled()
gc.disable()
try:
    import torch
finally:
    gc.freeze()
    if _is_collecting:
        gc.enable()

__all__ = ["torch"]
