"""The quicker import of torch, in a process of its own: here, torch may be imported already."""

import subprocess
import sys

SCRIPT = """
import gc, sys
from dragoman.cluster.quick_torch import torch
assert "torch._decomp" not in sys.modules, "the unused part was imported"
assert gc.isenabled()
assert torch.ones(2).sum() == 2
import torch._meta_registrations as left_out
assert left_out.__file__, "the part that was left out cannot be imported later"
without_data = torch.empty(3, 4, device="meta")
assert (without_data @ without_data.T).shape == (3, 3)
"""


def test_torch_is_imported_without_a_part_that_can_be_imported_later():
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, timeout=250)
