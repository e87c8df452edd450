"""The quicker import of torch, in a process of its own: here, torch may be imported already."""

import subprocess
import sys

SCRIPT = """
import gc
from dragoman.cluster.quick_torch import torch
assert gc.isenabled()
assert gc.get_freeze_count() > 100_000, "what was imported is searched for garbage"
assert torch.rand(3, generator=torch.Generator().manual_seed(1)).sum() > 0
without_data = torch.empty(3, 4, device="meta")
assert (without_data @ without_data.T).shape == (3, 3)
"""


def test_torch_is_whole_and_not_searched_for_garbage():
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, timeout=250)
