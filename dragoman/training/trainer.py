"""The training loop: read `Trainer.train` from top to bottom to know what a run does."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dragoman.cluster.heartbeat import beat, report_end
from dragoman.cluster.step_clock import Part
from dragoman.cluster.world import Vote, World
from dragoman.corpus.batching import FIRST_POSITION, MicroBatch, StepPlan, share_of_rank
from dragoman.corpus.mixture import Mixture
from dragoman.corpus.prepared_corpus import PreparedCorpus
from dragoman.model.device import is_accelerator
from dragoman.model.teacher_forcing import evaluating, teacher_forced_predictions
from dragoman.monitoring.interval import TrainMeters, read_parts
from dragoman.monitoring.pace import FinishedStep
from dragoman.monitoring.watcher import PredictionSample, Watcher
from dragoman.run.checkpoints import METRIC_NAMES, SavedEvaluation, WeightsName
from dragoman.run.config import Settings
from dragoman.run.folder import RunFolder
from dragoman.run.schedule import build_schedule, lower_at_plateaus, peak_rate
from dragoman.run.synchronisation import Synchronisation
from dragoman.training.checkpoint import TrainingState, restore_learner, restore_replicas
from dragoman.training.dev_evaluation import DevEvaluator, JudgedWeights
from dragoman.training.dev_progress import DevProgress
from dragoman.training.final_average import judge_final_average
from dragoman.training.kept_checkpoints import FinalAverage, KeptCheckpoints
from dragoman.training.learner import (
    Learner,
    build_stream,
    largest_batch,
    measure_fixed_share,
    set_learning_rate,
)
from dragoman.training.read_ahead import ReadAhead
from dragoman.training.resuming import ResumePlan, load_start_weights, send_replicas, send_state
from dragoman.training.run_messages import describe_end, describe_start, describe_synchronisation
from dragoman.training.saving import SAME_EVERYWHERE, CheckpointSaver, ReplicaTensors, Saved, SaveFailed
from dragoman.training.step_result import StepResult
from dragoman.training.stopping import FiniteGuard, StopConditions, StopReason
from dragoman.training.updates import build_updates

_FIXED_COST_STEP = 5


@dataclass(frozen=True)
class UnreadStep:
    """A step whose outcome the device may not have computed yet."""

    step: int
    result: StepResult
    learning_rate: float | Tensor
    num_own_tokens: int
    """Target tokens of this rank."""


class Trainer:
    """Trains on one rank; every rank has a trainer, and all make the same steps at the same time."""

    def __init__(
        self,
        run: RunFolder,
        settings: Settings,
        corpus: PreparedCorpus,
        world: World,
        watcher: Watcher,
        resume: ResumePlan,
        stop: StopConditions,
        synchronisation: Synchronisation = Synchronisation(),  # noqa: B008 - frozen
        restart_cause: str | None = None,
        is_restart_recorded: bool = False,
    ) -> None:
        self._restart_cause, self._is_restart_recorded = restart_cause, is_restart_recorded
        self._run = run
        self._settings = settings
        self._corpus = corpus
        self._world = world
        self._watcher = watcher
        self.learner, self._updates = build_updates(settings, synchronisation, corpus, world, self._rate_share)
        self._schedule = build_schedule(settings.training, self.learner.model.shape.width)
        self._peak_rate = peak_rate(self._schedule, settings.training)
        self.step = self._num_updates = 0
        self._stop, self._spent = stop, stop.spent
        position, self._begin = FIRST_POSITION, time.monotonic()
        state = self._restore(resume)
        if state is not None:
            self.step, self._num_updates, position = state.step, state.num_updates, state.position
            self._spent.count_at_least(state.training_seconds)
            self._begin -= state.training_seconds
        self._mixture = Mixture.build(corpus.train_corpora, settings.data)
        self._stream, self._position = build_stream(settings, corpus, self._mixture, position), position
        self._share = share_of_rank(settings.training.virtual_workers, world.rank, world.size)
        self._reader = ReadAhead(self._stream, self._share, world.device)
        self._told_size = self.learner.passes.largest_size
        self._meters = TrainMeters()
        self._unread: UnreadStep | None = None
        self._newest_loss = (0.0, 0)
        """The smoothed loss of the last step whose outcome is known, and the number of its target tokens."""
        agreed_weights = self._updates.agreed_weights
        self._evaluator = DevEvaluator(run, settings, corpus, world, watcher, stop, self.learner, agreed_weights)
        self._evaluation: SavedEvaluation | None = None
        self._weights: WeightsName = (
            state.weights if state is not None and self.learner.average is not None else "trained"
        )
        self._progress = state.progress if state is not None else DevProgress()
        self._restored = state
        self._is_resumed = state is not None
        self._is_evaluation_missing = state is not None and self._lacks_evaluation(state)
        self._is_saver = resume.is_saver
        self._savers = _find_savers(resume, world) if self._updates.is_saved_together else []
        self._final_average = FinalAverage.from_settings(settings)
        kept = KeptCheckpoints(run, settings.checkpoints, settings.best_by, self._final_average)
        self._saver = CheckpointSaver(run, kept, self.step if self._is_resumed else None)
        self._is_save_due = False
        self._collected, self._collected_at = SAME_EVERYWHERE, -1
        self._first_step = self.step
        self._fixed_share: float | None = None

    def _restore(self, resume: ResumePlan) -> TrainingState | None:
        """Collective: reads or receives the state the run continues from; None for a new run."""
        state = None
        if resume.checkpoint is not None:
            state = restore_learner(resume.checkpoint, self.learner, self._corpus.fingerprint)
            replicas = restore_replicas(resume.checkpoint, state, self._updates)
        if resume.sender is not None:
            sent = send_state(self.learner, state, self._world, resume.sender)
            send_replicas(self._updates, sent, replicas if state else {}, self._world, resume.sender)
            state = sent
        if state is None and self._settings.training.start_from:
            load_start_weights(self._run, self.learner, self._world)
        return state

    def train(self) -> StopReason:
        """Collective: trains until the last step, the end of a budget or a request to stop; returns which."""
        settings = self._settings
        self._announce()
        if not self._is_resumed:
            if settings.evaluation.evaluate_at_start:
                self._evaluate()
            self._save_and_wait(self._saver.save_now)  # so that a run can be resumed from the start
        if is_accelerator(self._world.device):
            self._find_fitting_size()
        self._guard = FiniteGuard(self.learner.loss_scale)
        self._spent.note_started()
        reason = self._reason_at_start()
        if self._is_evaluation_missing and reason <= StopReason.STEPS:
            reason = self._evaluate() or reason

        with self._saver, self._reader:  # finishes a checkpoint that is being written, even where a step fails
            if self._is_resumed and self._evaluation is not None:
                self._saver.mark_outdated()  # it was saved without its evaluation
                self._is_save_due = True
                self._save_if_due()
            self.learner.clock.restart()
            while reason is StopReason.NONE:
                begin = time.perf_counter()
                self.learner.clock.begin_step()
                beat("reading a batch", self.step)
                vote = self._start_vote()  # answered while the step computes
                read = self._reader.take()
                plan, batches = read.plan, read.batches
                learning_rate = self._next_learning_rate()
                set_learning_rate(self.learner.optimizer, learning_rate)
                result = self._updates.learn(self.step, batches, plan)

                self.step, self._position = self.step + 1, read.position
                self._evaluation = None
                self._say_what_fits()
                self._note_update(UnreadStep(self.step, result, learning_rate, _num_target_tokens(batches)))
                reason = self._await_vote(vote)
                seconds = time.perf_counter() - begin
                self._measure(plan, result, seconds)
                self._watcher.progressed(self.step, self._finished_step(plan, seconds))
                if reason <= StopReason.COST and self.step >= settings.training.max_steps:
                    reason = StopReason.STEPS  # even if a budget ends with it: nothing is left to do
                is_over = reason is not StopReason.NONE
                self._measure_fixed_cost(batches)

                if self.step % settings.training.log_every == 0 or is_over:
                    self._log(learning_rate, batches)
                is_asked_to_end = reason >= StopReason.HOST_BACK
                if not is_asked_to_end and (is_over or self._is_evaluation_due(self.step)):
                    reason = self._evaluate(is_last=is_over) or reason
                    if reason is StopReason.PATIENCE:
                        self._log(learning_rate, batches)
                self._is_save_due |= self.step % settings.checkpoints.save_every == 0 or self._is_best()
                self._save_if_due()
            self._save_and_wait(self._saver.finish)
            if self._final_average is not None and reason < StopReason.HOST_BACK:
                self._average_checkpoints(self._final_average)

        end = describe_end(self._run, settings, reason, self.step, self._spent, self._progress)
        self._watcher.say(end)
        report_end(reason.name.lower(), self.step)
        return reason

    def _find_fitting_size(self) -> None:
        """Collective: finds out before the first step whether the batches of the run fit into the device's memory."""
        beat("trying the largest batch")
        self.learner.try_batch(dict.fromkeys(self._share, largest_batch(self._settings)))
        self._say_what_fits()

    def _say_what_fits(self) -> None:
        """Says once that batches are computed in pieces, where the memory of the first rank's device is too small."""
        largest = self.learner.passes.largest_size
        if largest < self._told_size:
            self._told_size = largest
            self._watcher.say(
                f"step {self.step}: Batches of more than {largest:,.0f} padded tokens do not fit into the memory of "
                f"this {self._world.device.type} device: each is computed in halves, with the same sums of gradients."
            )

    def _reason_at_start(self) -> StopReason:
        """Collective: returns why no step is to be made at all: a resumed run has ended, or has no budget left."""
        if self.step >= self._settings.training.max_steps:
            return StopReason.STEPS
        if self._progress.is_patience_over(self._settings):
            return StopReason.PATIENCE
        if not self._is_resumed:
            return StopReason.NONE  # even the smallest budget brings one step, which shows what a step takes
        return StopReason(self._start_vote().result())

    def _start_vote(self) -> Vote:
        """Collective: starts the vote of all ranks on whether to stop after the step that begins now."""
        is_evaluation_due = self._is_evaluation_due(self.step + 1)
        return self._world.start_vote(self._stop.reason_before_step(is_evaluation_due))

    def _await_vote(self, vote: Vote) -> StopReason:
        """Returns the result of a vote; replicas that learn apart wait here for slower ones."""
        self.learner.clock.switch(Part.WAITING)
        reason = StopReason(vote.result())
        self.learner.clock.switch(Part.OTHER)
        return reason

    def _is_evaluation_due(self, step: int) -> bool:
        return step % self._settings.evaluation.evaluate_every == 0

    def _announce(self) -> None:
        for message in describe_start(self._settings, self.learner, self._world, self._mixture, self._stream):
            self._watcher.say(message)
        if message := describe_synchronisation(self._updates.plan):
            self._watcher.say(message)
        if self._is_resumed:
            figures = {"workers": self._world.size, "cause": self._restart_cause}
            self._watcher.restarted(self.step, None if self._is_restart_recorded else figures, self._spent.seconds)

    def _measure(self, plan: StepPlan, result: StepResult, seconds: float) -> None:
        meters = self._meters
        meters.num_steps += 1
        meters.seconds += seconds
        meters.num_target_tokens += plan.num_target_tokens
        meters.num_tokens += plan.num_tokens
        meters.num_padded_tokens += plan.num_padded_tokens
        meters.num_full_steps += self._batch_share
        meters.losses.append(torch.stack(result.loss_sums))

    def _finished_step(self, plan: StepPlan, seconds: float) -> FinishedStep:
        spent = self._spent.seconds
        return FinishedStep(seconds, plan.num_target_tokens, *self._newest_loss, spent, self._batch_share)

    def _note_update(self, made: UnreadStep) -> None:
        """Counts an update and reads the outcome of the one before, which the device has computed by now."""
        self._num_updates += 1
        before, self._unread = self._unread, made
        self._read(before)
        if not self.learner.is_read_late:
            self._read_outcomes()

    def _read_outcomes(self) -> None:
        """Waits until the outcome of every step is known: nothing is recorded or saved before."""
        self.learner.read_outcome()
        unread, self._unread = self._unread, None
        self._read(unread)

    def _read(self, made: UnreadStep | None) -> None:
        """Reads the outcome of a step; ends the run where its gradient was not finite."""
        if made is None:
            return
        result = made.result
        self._guard.check(made.step, result.is_finite, result.gradient_norm, float(made.learning_rate))
        self._newest_loss = result.own_loss, made.num_own_tokens
        if result.is_finite:
            self._meters.gradient_norm_sum += result.gradient_norm
            self._meters.num_finite_norms += 1
        else:
            self._num_updates -= 1

    @property
    def _batch_share(self) -> float:
        """Size of the batch of the newest step, as a share of a full one."""
        return self._settings.training.batch_growth.share_at(self.step - 1)

    def _measure_fixed_cost(self, batches: dict[int, MicroBatch]) -> None:
        """Measures, when caches are warm, the time of a batch that does not depend on its number of tokens.

        That is once for each size of the batch.
        """
        if self._settings.training.batch_growth.is_growing(self.step - 1):
            self._first_step, self._fixed_share = self.step - 1, None
        is_due = self.step == self._first_step + _FIXED_COST_STEP and self.learner.clock.is_on
        if is_due and batches:
            beat("measuring the fixed cost of a batch")
            self._fixed_share = measure_fixed_share(self.learner, next(iter(batches.values())))

    def _log(self, learning_rate: float | Tensor, batches: dict[int, MicroBatch]) -> None:
        """Collective: writes one record about the steps since the last one."""
        if not self._meters.num_steps:
            return
        self._read_outcomes()
        figures: dict[str, Any] = self._meters.read(self._world) | {
            "learning_rate": float(learning_rate),
            "loss_scale": self.learner.loss_scale.value,
            "skipped_steps": self.learner.loss_scale.num_skipped_steps,
            "epoch": self._position.epoch,
            "training_seconds": self._training_seconds,
            "spent_seconds": self._spent.seconds,
        }
        figures["steps_per_second"] = 1 / figures["seconds_per_step"]
        if self._spent.cost is not None:
            figures["cost"] = self._spent.cost
        if (parts := read_parts(self.learner.clock, self._world)) is not None:
            figures |= parts.to_record() | {"fixed_share": self._fixed_share}
            figures["gradient_bytes"] = self.learner.gradients.flat.nbytes
        if (strategy := self._updates.plan.strategy) != "every_step":
            figures |= {"synchronisation": strategy, "replica_bytes_per_step": self._updates.bytes_per_step}
        is_sample_due = self.step % self._settings.training.sample_every < self._meters.num_steps
        self._meters = TrainMeters()
        is_shown = self._world.is_first and is_sample_due and bool(batches)
        self._watcher.trained(self.step, figures, self._sample(next(iter(batches.values()))) if is_shown else None)

    def _sample(self, batch: MicroBatch) -> PredictionSample:
        """Returns the first pair of a batch and the model's teacher-forced prediction for it."""
        model, corpus = self.learner.model, self._corpus
        first = batch.first_pair()
        with evaluating(model):
            prediction = teacher_forced_predictions(model, first, self._settings.training.precision)[0]
        begin_mark = "<s>"
        return PredictionSample(
            source=[begin_mark, *corpus.source_tokenizer.subwords(first.source[0])],
            target=[begin_mark, *corpus.target_tokenizer.subwords(first.target_output[0])],
            prediction=[begin_mark, *corpus.target_tokenizer.subwords(prediction)],
        )

    def _rate_share(self) -> float:
        """Returns the learning rate of the next update as a share of the largest one; 1 while it rises."""
        is_rising = self._num_updates < self._settings.training.warmup_steps
        return 1.0 if is_rising else self._learning_rate() / self._peak_rate

    def _learning_rate(self, num_updates_less: int = 0) -> float:
        """Returns the learning rate of the next update, if no gradient was found not to be finite meanwhile."""
        rate = self._schedule(self._num_updates - num_updates_less)
        return lower_at_plateaus(rate, self._progress.num_cuts, self._settings.training)

    def _next_learning_rate(self) -> float | Tensor:
        """Returns the learning rate of the next update; on the device where fp16 may yet skip the last one."""
        if self._unread is None or not self.learner.loss_scale.is_dynamic:
            return self._learning_rate()
        return self.learner.after_last_step(self._learning_rate(), self._learning_rate(1))

    def _evaluate(self, is_last: bool = False) -> StopReason:
        """Collective: evaluates the model on the dev set; returns why the run should end now, NONE if it should not."""
        self._read_outcomes()
        self._reader.rest()
        # The last evaluation may take long, or even kill the process: what was learned is saved before.
        is_saved = is_last and self._save_before_evaluation()
        judged = self._evaluator.evaluate(self.step)
        if not isinstance(judged, JudgedWeights):
            return judged
        if is_saved:
            self._saver.mark_outdated()
        self._evaluation, self._weights = judged.saved(), judged.weights
        newest = (self.step, judged.evaluation.loss, judged.evaluation.train_sample_loss)
        is_regular = self._is_evaluation_due(self.step)  # others would be unknown to a run that was not interrupted
        if is_regular and (message := self._updates.judge(newest, self._schedule)):
            self._watcher.say(f"step {self.step}: {message}")
            self._collected_at = -1
        return self._note_progress(self._evaluation)

    def _save_before_evaluation(self) -> bool:
        """Collective: starts to save on a rank that saves; returns whether it did."""
        replicas = self._collect_replicas()
        return self._is_saver and self._saver.save(self._state(), self.learner, replicas)

    def _note_progress(self, evaluation: SavedEvaluation) -> StopReason:
        """Counts an evaluation; returns PATIENCE where the run should end because it does not get better."""
        num_cuts, rate = self._progress.num_cuts, self._learning_rate()
        self._progress = self._progress.after(evaluation, self._settings, self._num_updates)
        if self._progress.num_cuts > num_cuts:
            metric, number = METRIC_NAMES[self._settings.evaluation.metric], self._settings.training.plateau_patience
            self._watcher.say(
                f"step {self.step}: {metric} did not get better in {number} evaluation{'s' if number > 1 else ''}: the "
                f"learning rate goes from {rate:.3g} to {self._learning_rate():.3g}."
            )
        is_over = self._progress.is_patience_over(self._settings) and self.step < self._settings.training.max_steps
        return StopReason.PATIENCE if is_over else StopReason.NONE

    def _average_checkpoints(self, average: FinalAverage) -> None:
        """Collective: averages checkpoints, and saves the average with the last one where it is better."""
        restored = self._restored if self._restored is not None and self._restored.step == self.step else None
        trained = self._evaluation or (restored.evaluation if restored is not None else None)
        is_done = restored is not None and restored.average is not None
        if trained is None or is_done:
            return
        found = judge_final_average(self._evaluator, average, self.step, trained)
        if found is None:
            return
        self.learner.average, judged = found
        self._evaluation, self._weights = judged.saved(), judged.weights
        if self._is_saver:
            self._saver.mark_outdated()
        self._save_and_wait(self._saver.finish)

    def _lacks_evaluation(self, state: TrainingState) -> bool:
        """Whether a checkpoint's step should have been evaluated, but a request to stop came first."""
        is_due = self._is_evaluation_due(state.step)
        is_last = state.step >= self._settings.training.max_steps
        return state.evaluation is None and state.step > 0 and (is_due or is_last)

    def _is_best(self) -> bool:
        """Whether this step has just been evaluated and is among the best; only used on a rank that saves."""
        if not self._is_saver or self._evaluation is None:
            return False
        return self._saver.is_among_best(self.step, self._evaluation)

    def _save_if_due(self) -> None:
        """Starts a checkpoint on a rank that saves; it stays due while an earlier one is being written."""
        if self._updates.is_saved_together:
            self._save_together_if_due()
            return
        if not self._is_saver:
            return
        if self._is_save_due and self._final_average is not None:
            self._saver.wait()  # an average needs the checkpoint of exactly this step
        self._report_saves()
        if self._is_save_due or self._saver.is_retry_due:
            self.learner.clock.switch(Part.CHECKPOINT)
            self._is_save_due = not self._saver.save(self._state(), self.learner)
            self.learner.clock.switch(Part.OTHER)

    def _save_together_if_due(self) -> None:
        """Collective: starts a checkpoint of all replicas where one rank finds it due; waits for an earlier one."""
        self._report_saves()
        is_possible = self.step % self._settings.checkpoints.save_every == 0 or self._evaluation is not None
        if not is_possible or not self._world.largest_numbers([float(self._is_save_due)])[0]:
            return
        self.learner.clock.switch(Part.CHECKPOINT)
        replicas = self._collect_replicas()
        if self._is_saver:
            self._saver.wait()
            self._saver.save(self._state(), self.learner, replicas)
        self._is_save_due = False
        self.learner.clock.switch(Part.OTHER)

    def _collect_replicas(self) -> ReplicaTensors:
        """Collective: returns what replicas add to a checkpoint; sends it to ranks that save, once for each step."""
        if self._collected_at != self.step:
            begin = time.perf_counter()
            collected = self._updates.collect(self._savers)
            agreed = self._updates.agreed_tensors(collected) if self._is_saver else ({}, {})
            seconds = time.perf_counter() - begin
            self._collected, self._collected_at = ReplicaTensors(*agreed, collected, seconds), self.step
        return self._collected

    def _save_and_wait(self, save: Callable[[TrainingState, Learner, ReplicaTensors], None]) -> None:
        """Collective: writes a checkpoint on a rank that saves; the others wait for it at the next collective."""
        replicas = self._collect_replicas()
        if not self._is_saver:
            return
        try:
            save(self._state(), self.learner, replicas)
        finally:
            self._report_saves()

    def _report_saves(self) -> None:
        for outcome in self._saver.poll():
            match outcome:
                case Saved():
                    self._spent.measured.checkpoint = outcome.seconds + outcome.snapshot_seconds
                    self._watcher.saved(outcome.step, outcome.figures())
                    for problem in outcome.problems:
                        self._watcher.say(problem)
                case SaveFailed():
                    self._watcher.save_failed(outcome.step, outcome.error)

    def _state(self) -> TrainingState:
        self._read_outcomes()
        return TrainingState(
            step=self.step,
            num_updates=self._num_updates,
            position=self._position,
            loss_scale=self.learner.loss_scale,
            training_seconds=self._training_seconds,
            model=self.learner.model.shape,
            data_fingerprint=self._corpus.fingerprint,
            evaluation=self._evaluation,
            weights=self._weights,
            average=self.learner.average.facts() if self.learner.average is not None else None,
            progress=self._progress,
            synchronisation=self._updates.plan,
            replicas=self._updates.facts(),
            has_replicas=self._updates.has_state,
            precision=self._settings.training.precision,
        )

    @property
    def _training_seconds(self) -> float:
        """Seconds that led to this step; what was lost to crashes and restarts is in `SpentTime` only."""
        return time.monotonic() - self._begin


def _find_savers(resume: ResumePlan, world: World) -> list[int]:
    """Collective: returns the ranks that save checkpoints."""
    flags = world.gather_numbers([float(resume.is_saver)])
    return [rank for rank, (is_saver,) in enumerate(flags) if is_saver]


def _num_target_tokens(batches: dict[int, MicroBatch]) -> int:
    return sum(batch.num_target_tokens for batch in batches.values())
