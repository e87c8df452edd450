"""Settings of all tests: one thread, kernels every machine can run, and no time limit for a single example."""

import sys

import pytest
from hypothesis import settings

settings.register_profile("dragoman", deadline=None)  # the machine may be busy
settings.load_profile("dragoman")


@pytest.fixture(autouse=True, scope="session")
def _plain_torch() -> None:
    """Makes torch quick over small products and safe in bf16; tests without torch do not import it for that."""
    if "torch" not in sys.modules:
        return
    torch = sys.modules["torch"]
    torch.set_num_threads(1)
    # Some virtual machines announce AMX and then trap its instructions (SIGILL), which would end the whole test run.
    # oneDNN reads the variable once, at its first product; gone again afterwards, it does not hide the fault from
    # processes that tests start.
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
        square = torch.ones(64, 64, dtype=torch.bfloat16)
        square @ square
