"""All ranks continue from the newest checkpoint of any host, and each run folder has one rank that saves.

The ranks are threads here; tests with a rig have hosts with real networks between them.
"""

import dataclasses
import hashlib
import json
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from learners import SMALL_SHAPE, learn_steps, small_learner

from dragoman.corpus.batching import BatchPosition
from dragoman.run.checkpoints import RESUME_FILES
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder, checkpoint_step
from dragoman.training.checkpoint import Snapshot, TrainingState, restore_learner, save_checkpoint
from dragoman.training.learner import Learner, optimizer_tensors
from dragoman.training.resuming import ResumePlan, plan_resume, send_replicas, send_state

FINGERPRINT = "0123456789abcdef" * 4
SECONDS = 60.0
Result = TypeVar("Result")


class ThreadWorld:
    """A world whose ranks are threads; it has the few ways to talk that a start needs."""

    def __init__(self, rank: int, size: int, local_rank: int, shared: dict[str, Any]) -> None:
        self.rank, self.size, self.local_rank = rank, size, local_rank
        self._shared = shared

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def wait_for_all(self) -> None:
        self._shared["barrier"].wait(SECONDS)

    def gather_texts(self, indexed: list[tuple[int, str]]) -> list[str]:
        self._shared[self.rank] = indexed
        self.wait_for_all()
        everything = sorted(item for rank in range(self.size) for item in self._shared[rank])
        self.wait_for_all()
        return [text for _, text in everything]

    def send_tensor(self, tensor: torch.Tensor, sender: int) -> None:
        if self.rank == sender:
            self._shared["tensor"] = tensor
        self.wait_for_all()
        tensor.copy_(self._shared["tensor"])
        self.wait_for_all()


def in_threads(folders: list[Path], local_ranks: list[int], act: Callable[[RunFolder, Any], Result]) -> list[Result]:
    """What comes of each rank, whose run folder is the one of its number."""
    shared = {"barrier": threading.Barrier(len(folders))}

    def play(rank: int) -> Result:
        try:
            return act(RunFolder(folders[rank]), ThreadWorld(rank, len(folders), local_ranks[rank], shared))
        except BaseException:
            shared["barrier"].abort()
            raise

    with ThreadPoolExecutor(len(folders)) as pool:
        return list(pool.map(play, range(len(folders))))


def plans_of(folders: list[Path], local_ranks: list[int] | None = None) -> list[ResumePlan]:
    ranks = local_ranks or [0] * len(folders)
    return in_threads(folders, ranks, lambda run, world: plan_resume(run, world, lambda _: None))


def write_checkpoint(folder: Path, step: int, is_whole: bool = True) -> None:
    """The files of a checkpoint, as far as it takes to be found whole."""
    checkpoint = RunFolder(folder).checkpoint(step)
    checkpoint.mkdir(parents=True)
    digest = hashlib.sha256(b"content").hexdigest()
    files = {name: {"bytes": 7, "sha256": digest} for name in RESUME_FILES}
    for name in RESUME_FILES:
        (checkpoint / name).write_bytes(b"content" if is_whole else b"damaged")
    (checkpoint / "manifest.json").write_text(json.dumps({"files": files}))


@pytest.fixture
def folders(tmp_path) -> list[Path]:
    """Three run folders, as three hosts would have them under the same name."""
    found = [tmp_path / name / "run" for name in "abc"]
    for folder in found:
        folder.mkdir(parents=True)
    return found


def test_a_run_without_checkpoints_begins_everywhere(folders):
    plans = plans_of(folders)
    assert all(plan.is_new_run and plan.is_saver for plan in plans)


def test_replicas_travel_from_the_kind_of_device_on_which_others_await_them():
    """A file is read into host memory; a rank that sent from there would wait for ranks that listen on their GPUs."""
    updates: Any = SimpleNamespace(expected_tensors=lambda _facts: {"anchor": torch.empty(3, device="meta")})
    state: Any = SimpleNamespace(has_replicas=True, replicas={})
    sent = []
    world: Any = SimpleNamespace(rank=0, send_tensor=lambda tensor, _sender: sent.append(tensor.device.type))
    send_replicas(updates, state, {"anchor": torch.zeros(3)}, world, sender=0)
    assert sent == ["meta"]


def test_one_process_looks_for_itself(folders):
    write_checkpoint(folders[0], 7)
    (plan,) = plans_of(folders[:1])
    assert plan == ResumePlan(RunFolder(folders[0]).checkpoint(7), None, is_saver=True, step=7)


def test_the_newest_checkpoint_is_sent_to_those_that_lack_it(folders):
    write_checkpoint(folders[1], 7)
    write_checkpoint(folders[2], 14)
    plans = plans_of(folders)
    assert [plan.checkpoint for plan in plans] == [None, None, RunFolder(folders[2]).checkpoint(14)]
    assert [plan.sender for plan in plans] == [2, 2, 2]
    assert [plan.step for plan in plans] == [14, 14, 14]  # also where the checkpoint is sent
    assert not any(plan.is_new_run for plan in plans)


def test_nothing_is_sent_where_all_have_the_newest(folders):
    for folder in folders:
        write_checkpoint(folder, 7)
    plans = plans_of(folders)
    assert [plan.sender for plan in plans] == [None] * 3
    assert [plan.checkpoint for plan in plans] == [RunFolder(folder).checkpoint(7) for folder in folders]


def test_in_a_shared_folder_all_read_and_only_the_first_writes(folders):
    write_checkpoint(folders[0], 7)
    plans = plans_of([folders[0]] * 3, [0, 1, 0])
    assert [plan.checkpoint for plan in plans] == [RunFolder(folders[0]).checkpoint(7)] * 3
    assert [plan.sender for plan in plans] == [None] * 3
    assert [plan.is_saver for plan in plans] == [True, False, False]


def test_one_worker_of_each_host_writes_where_no_folder_is_shared(folders):
    plans = plans_of([folders[0], folders[0], folders[1], folders[1]], [0, 1, 0, 1])
    assert [plan.is_saver for plan in plans] == [True, False, True, False]


def test_all_workers_of_a_host_continue_from_the_checkpoint_of_its_folder(folders):
    for folder in folders[:2]:
        write_checkpoint(folder, 7)
    plans = plans_of([folders[0], folders[0], folders[1], folders[1]], [0, 1, 0, 1])
    sent = {plan.sender for plan in plans}
    assert len(sent) == 1
    assert all(plan.checkpoint is not None for plan in plans) or sent == {0}


def test_hosts_that_share_a_folder_which_the_first_host_does_not_see_have_one_writer(folders):
    """Two would remove each other's half-written checkpoints."""
    plans = plans_of([folders[0], folders[1], folders[1]])
    assert [plan.is_saver for plan in plans] == [True, True, False]


def test_a_damaged_checkpoint_is_passed_over_for_another_hosts_whole_one(folders):
    write_checkpoint(folders[0], 7)
    write_checkpoint(folders[0], 14, is_whole=False)
    write_checkpoint(folders[1], 10)
    plans = plans_of(folders[:2])
    assert [plan.sender for plan in plans] == [1, 1]
    assert plans[1].checkpoint == RunFolder(folders[1]).checkpoint(10)


def test_a_folder_with_nothing_but_damaged_checkpoints_is_not_begun_anew(folders):
    write_checkpoint(folders[0], 7, is_whole=False)
    with pytest.raises(UserError, match="are damaged; nothing was changed"):
        plans_of(folders[:1])
    assert RunFolder(folders[0]).checkpoint_steps() == [7]


def test_no_trace_of_the_search_is_left(folders):
    plans_of(folders)
    assert [list(folder.iterdir()) for folder in folders] == [[], [], []]


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[int], list[int], list[set[int]]]:
    """The folder of each rank, its rank on its host, and the steps in each folder; ranks of a host are neighbours."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    is_shared = draw(st.booleans())
    hosts = [host for host, size in enumerate(sizes) for _ in range(size)]
    local_ranks = [local_rank for size in sizes for local_rank in range(size)]
    steps = draw(st.lists(st.sets(st.integers(0, 5), max_size=2), min_size=len(sizes), max_size=len(sizes)))
    return [0 if is_shared else host for host in hosts], local_ranks, steps


@settings(max_examples=40)
@given(clusters())
def test_whoever_has_what_all_continue_from_the_newest_and_each_folder_has_one_writer(cluster):
    numbers, local_ranks, steps = cluster
    with tempfile.TemporaryDirectory() as root:
        folders = [Path(root) / str(number) for number in range(len(steps))]
        for folder, of_folder in zip(folders, steps, strict=True):
            folder.mkdir()
            for step in of_folder:
                write_checkpoint(folder, step)
        plans = plans_of([folders[number] for number in numbers], local_ranks)
    present = set().union(*(steps[number] for number in numbers))
    for plan, number in zip(plans, numbers, strict=True):
        assert plan.is_new_run == (not present)
        assert plan.step == max(present, default=None)
        if plan.checkpoint is not None:
            assert checkpoint_step(plan.checkpoint) == max(present)
            assert max(present) in steps[number]
        elif present:
            assert plans[plan.sender].checkpoint is not None
    assert len({plan.sender for plan in plans}) == 1
    savers = [number for plan, number in zip(plans, numbers, strict=True) if plan.is_saver]
    assert sorted(savers) == sorted(set(numbers))


def train_to(run: RunFolder, num_steps: int) -> dict[str, Any]:
    """A checkpoint of a learner that has learned for a few steps, some of which overflowed; its fingerprint."""
    learner = small_learner(precision="fp16")
    learn_steps(learner, *range(num_steps))
    learner.loss_scale.update(is_finite=False)
    state = TrainingState(
        num_steps, num_steps, BatchPosition(1, 2, 3, num_steps), learner.loss_scale, 12.5, SMALL_SHAPE, FINGERPRINT
    )
    weights, moments = dict(learner.model.named_parameters()), optimizer_tensors(learner.model, learner.optimizer)
    save_checkpoint(run, Snapshot(state, weights, moments))
    return fingerprint(learner, state)


def fingerprint(learner: Learner, state: TrainingState) -> dict[str, Any]:
    """All that must be the same on every rank, short enough to compare."""
    tensors = dict(learner.model.named_parameters()) | optimizer_tensors(learner.model, learner.optimizer)
    digests = {name: hashlib.sha256(tensor.detach().numpy().tobytes()).hexdigest() for name, tensor in tensors.items()}
    steps = {float(each["step"]) for each in learner.optimizer.state.values()}
    loss_scale = dataclasses.asdict(learner.loss_scale)
    return {"tensors": digests, "steps": sorted(steps), "state": state.to_json(), "loss_scale": loss_scale}


def test_one_has_the_newest_one_an_older_and_one_no_checkpoint_and_all_end_with_the_same(folders):
    train_to(RunFolder(folders[1]), 2)
    newest = train_to(RunFolder(folders[2]), 3)
    learners = [small_learner(model_seed=seed, precision="fp16") for seed in (1, 2, 3)]

    def continue_run(run: RunFolder, world: Any) -> dict[str, Any]:
        learner, state = learners[world.rank], None
        plan = plan_resume(run, world, lambda _: None)
        if plan.checkpoint is not None:
            state = restore_learner(plan.checkpoint, learner, FINGERPRINT)
        assert plan.sender == 2
        return fingerprint(learner, send_state(learner, state, world, plan.sender))

    for found in in_threads(folders, [0, 0, 0], continue_run):
        assert found == newest


def test_a_checkpoint_from_before_the_first_update_has_no_moments_to_send(folders):
    fresh = train_to(RunFolder(folders[1]), 0)
    learners = [small_learner(model_seed=seed, precision="fp16") for seed in (1, 2)]

    def continue_run(run: RunFolder, world: Any) -> dict[str, Any]:
        learner = learners[world.rank]
        checkpoint = run.checkpoint(0)
        state = restore_learner(checkpoint, learner, FINGERPRINT) if checkpoint.exists() else None
        return fingerprint(learner, send_state(learner, state, world, sender=1))

    for found in in_threads(folders[:2], [0, 0], continue_run):
        assert found["tensors"] == fresh["tensors"]
        assert found["steps"] == []
