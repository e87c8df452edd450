"""Settings of all tests, and what tests of the whole program share."""

import fcntl
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from program import Run, run_dragoman

LONGER_TESTS_END = "LONGER_TESTS_END"
"""Environment variable: the time, in seconds since 1970, after which no longer test begins."""

# Threads that wait must not keep cores busy: other tests run at the same time.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Programs inherit signals that are ignored, as by nohup or a shell that runs tests in the background; a handler they do
# not inherit. A lost terminal still does not end the tests.
for _number, _handler in {
    signal.SIGHUP: lambda *_: None,
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}.items():
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)

# No deadline: the machine may be busy. What decides whether a change lands must not depend on luck.
settings.register_profile("dragoman", deadline=None, derandomize=os.environ.get("CI") == "true")
settings.load_profile("dragoman")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves out unit tests without longer ones where only these run: importing all of them takes a while."""
    word, is_unit_test = str(config.option.markexpr).partition(" ")[0], "unit" in collection_path.parts
    if word == "slow" and is_unit_test and collection_path.name.startswith("test_"):
        return "pytest.mark.slow" not in collection_path.read_text(encoding="utf-8") or None
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Starts the files with the longest tests first (by their own time limits), so that none runs alone at the end."""
    limits: dict[Path, float] = {}
    for item in items:
        marker = item.get_closest_marker("timeout")
        limits[item.path] = max(limits.get(item.path, 0.0), float(marker.args[0]) if marker else 0.0)
    items.sort(key=lambda item: limits[item.path], reverse=True)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips longer tests once their time is used up: on a slow machine, some proofs are better than no result."""
    end = float(os.environ.get(LONGER_TESTS_END, "inf"))
    if item.get_closest_marker("slow") and time.time() > end:
        pytest.skip(f"the time for longer tests is used up ({LONGER_TESTS_END})")


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


@pytest.fixture(scope="session")
def dragoman() -> Run:
    return run_dragoman


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives each worker one thread: several threads of a tiny model only wait for each other on a busy machine."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Returns a folder that the first process of this test run to need it makes; the others wait for it."""
    own = factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / name
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            (folder / "complete").touch()
    return folder


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,000 pairs of the built-in corpus, prepared; tests must not change it."""
    return made_once(tmp_path_factory, "shared", _prepare) / "prepared"


def _prepare(folder: Path) -> None:
    from dragoman.builtin import write_builtin_corpus
    from dragoman.corpus.preparation.prepare import prepare_corpus
    from dragoman.corpus.settings import PrepareSettings, TokenizerSettings

    corpus = write_builtin_corpus(folder / "corpus", num_train=1_000, num_dev=20, num_test=20)
    settings = PrepareSettings.of_files(
        [corpus.train.source],
        [corpus.train.target],
        dev=([corpus.dev.source], [corpus.dev.target]),
        test=([corpus.test.source], [corpus.test.target]),
        tokenizer=TokenizerSettings(vocab_size=500),
    )
    prepare_corpus(settings, folder / "prepared", say=lambda _: None)


@pytest.fixture
def config(tmp_path: Path, prepared: Path) -> Path:
    """A run of seconds: a tiny model with dropout, every step logged."""
    return write_short_config(tmp_path / "config.toml", prepared)


@pytest.fixture(scope="session")
def trained_run(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of `config` with one worker, trained to its last step, 50; tests must not change it."""

    def train(folder: Path) -> None:
        config = write_short_config(folder / "config.toml", prepared)
        run_dragoman(
            "train", config, "--workers", 1, "--run-dir", folder / "run", env=os.environ | {"OMP_NUM_THREADS": "1"}
        )

    return made_once(tmp_path_factory, "trained", train) / "run"


@pytest.fixture
def run_copy(trained_run: Path, tmp_path: Path) -> Path:
    """A copy of `trained_run` that a test may change; it has the checkpoints of steps 49 and 50."""
    return Path(shutil.copytree(trained_run, tmp_path / "run", symlinks=True))


def write_short_config(path: Path, prepared: Path) -> Path:
    path.write_text(
        f"""
[data]
prepared = "{prepared}"
[model]
preset = "tiny"
width = 32
feed_forward = 64
[training]
max_steps = 50
global_batch_tokens = 800
virtual_workers = 4
schedule = "fixed"
learning_rate = 3e-3
warmup_steps = 10
log_every = 1
sample_every = 20
[evaluation]
evaluate_every = 1000
max_sentences = 4
beam_size = 2
[checkpoints]
save_every = 7
keep_last = 2
keep_best = 0
[monitoring]
report = false
""",
        encoding="utf-8",
    )
    return path
