"""The training loop: read `Trainer.train` from top to bottom to know what a run does."""

import time
from collections.abc import Callable

import torch

from dragoman.cluster.failure import write_traceback
from dragoman.cluster.heartbeat import beat, report_end
from dragoman.cluster.step_clock import Part
from dragoman.cluster.world import Vote, World
from dragoman.corpus.batching import FIRST_POSITION, MicroBatch, StepPlan, share_of_rank
from dragoman.corpus.mixture import Mixture
from dragoman.corpus.prepared_corpus import PreparedCorpus
from dragoman.evaluation.validation import Evaluation, EvaluationFailedError, evaluate_on_dev, save_translations
from dragoman.model.teacher_forcing import evaluating, teacher_forced_predictions
from dragoman.monitoring.interval import TrainMeters, read_parts
from dragoman.monitoring.pace import FinishedStep
from dragoman.monitoring.watcher import PredictionSample, Watcher
from dragoman.run.checkpoints import SavedEvaluation
from dragoman.run.commands import command_for, resume_command
from dragoman.run.config import Settings
from dragoman.run.folder import RunFolder
from dragoman.run.schedule import build_schedule
from dragoman.run.units import format_duration
from dragoman.training.checkpoint import TrainingState, restore_learner
from dragoman.training.kept_checkpoints import KeptCheckpoints
from dragoman.training.learner import (
    Learner,
    StepResult,
    build_learner,
    build_stream,
    measure_fixed_share,
    read_micro_batches,
    set_learning_rate,
)
from dragoman.training.resuming import ResumePlan, send_state
from dragoman.training.saving import CheckpointSaver, Saved, SaveFailed
from dragoman.training.stopping import FiniteGuard, StopConditions, StopReason

_FIXED_COST_STEP = 5


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
        restart_cause: str | None = None,
    ) -> None:
        self._restart_cause = restart_cause
        self._run = run
        self._settings = settings
        self._corpus = corpus
        self._world = world
        self._watcher = watcher
        self.learner = build_learner(settings, corpus, world)
        self._schedule = build_schedule(settings.training, self.learner.model.shape.width)
        self.step = self._num_updates = 0
        self._stop, self._spent = stop, stop.spent
        position, self._begin = FIRST_POSITION, time.monotonic()
        state = self._restore(resume)
        if state is not None:
            self.step, self._num_updates, position = state.step, state.num_updates, state.position
            self._spent.count_at_least(state.training_seconds)
            self._begin -= state.training_seconds
        self._mixture = Mixture.build(corpus.train_corpora, settings.data)
        self._stream = build_stream(settings, corpus, self._mixture, position)
        self._share = share_of_rank(settings.training.virtual_workers, world.rank, world.size)
        self._meters = TrainMeters()
        self._evaluation: SavedEvaluation | None = None
        self._is_resumed = state is not None
        self._is_evaluation_missing = state is not None and self._lacks_evaluation(state)
        self._is_saver = resume.is_saver
        kept = KeptCheckpoints(run, settings.checkpoints, settings.best_by)
        self._saver = CheckpointSaver(run, kept, self.step if self._is_resumed else None)
        self._is_save_due = False
        self._first_step = self.step
        self._fixed_share: float | None = None

    def _restore(self, resume: ResumePlan) -> TrainingState | None:
        """Collective: reads or receives the state the run continues from; None for a new run."""
        state = None
        if resume.checkpoint is not None:
            state = restore_learner(resume.checkpoint, self.learner, self._corpus.fingerprint)
        if resume.sender is not None:
            state = send_state(self.learner, state, self._world, resume.sender)
        return state

    def train(self) -> StopReason:
        """Collective: trains until the last step, the end of a budget or a request to stop; returns which."""
        settings = self._settings
        self._announce()
        if not self._is_resumed:
            if settings.evaluation.evaluate_at_start:
                self._evaluate()
            self._save_and_wait(self._saver.save_now)  # so that a run can be resumed from the start
        guard = FiniteGuard(self.learner.loss_scale)
        self._spent.note_started()
        reason = self._reason_at_start()
        if self._is_evaluation_missing and reason <= StopReason.STEPS:
            reason = self._evaluate() or reason

        with self._saver:  # finishes a checkpoint that is being written, even where a step fails
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
                plan = self._stream.next_step()
                batches = read_micro_batches(self._stream, plan, self._share)
                learning_rate = self._schedule(self._num_updates)
                set_learning_rate(self.learner.optimizer, learning_rate)
                result = self.learner.learn(self.step, batches, plan.num_target_tokens)
                guard.check(self.step + 1, result.is_finite, result.gradient_norm, learning_rate)

                self.step += 1
                self._num_updates += result.is_finite
                self._evaluation = None
                seconds = time.perf_counter() - begin
                self._measure(plan, result, seconds)
                self._watcher.progressed(self.step, self._finished_step(plan, result, batches, seconds))
                reason = StopReason(vote.result())
                if reason <= StopReason.COST and self.step >= settings.training.max_steps:
                    reason = StopReason.STEPS  # even if a budget ends with it: nothing is left to do
                is_over = reason is not StopReason.NONE
                self._measure_fixed_cost(batches)

                if self.step % settings.training.log_every == 0 or is_over:
                    self._log(learning_rate, batches)
                is_asked_to_end = reason >= StopReason.HOST_BACK
                if not is_asked_to_end and (is_over or self._is_evaluation_due(self.step)):
                    reason = self._evaluate(is_last=is_over) or reason
                self._is_save_due |= self.step % settings.checkpoints.save_every == 0 or self._is_best()
                self._save_if_due()
            self._save_and_wait(self._saver.finish)

        self._watcher.say(self._closing_message(reason))
        report_end(reason.name.lower(), self.step)
        return reason

    def _reason_at_start(self) -> StopReason:
        """Collective: returns why no step is to be made at all: all are made, or a resumed run has no budget left."""
        if self.step >= self._settings.training.max_steps:
            return StopReason.STEPS
        if not self._is_resumed:
            return StopReason.NONE  # even the smallest budget brings one step, which shows what a step takes
        return StopReason(self._start_vote().result())

    def _start_vote(self) -> Vote:
        """Collective: starts the vote of all ranks on whether to stop after the step that begins now."""
        is_evaluation_due = self._is_evaluation_due(self.step + 1)
        return self._world.start_vote(self._stop.reason_before_step(is_evaluation_due))

    def _is_evaluation_due(self, step: int) -> bool:
        return step % self._settings.evaluation.evaluate_every == 0

    def _announce(self) -> None:
        shape = self.learner.model.shape
        num_parameters = sum(parameter.numel() for parameter in self.learner.model.parameters())
        self._watcher.say(
            f"{self._settings.model.preset}: {num_parameters:,} parameters, "
            f"{shape.source_vocab_size:,} source and {shape.target_vocab_size:,} target subwords, "
            f"{self._settings.training.precision} on {self._world.device.type}."
        )
        self._watcher.say(
            f"{self._world.size} {'workers share' if self._world.size > 1 else 'worker has'} "
            f"{self._settings.training.virtual_workers} virtual workers and "
            f"{self._settings.training.global_batch_tokens:,} tokens per step."
        )
        for message in self._mixture.describe():
            self._watcher.say(message)
        if self._stream.num_left_out:
            self._watcher.say(
                f"{self._stream.num_left_out:,} training pairs are left out: one side has more than "
                f"{self._stream.longest_used} subwords (the limit is the smaller of data.max_tokens and "
                "training.global_batch_tokens / virtual_workers)."
            )
        if self._is_resumed:
            figures = {"workers": self._world.size, "cause": self._restart_cause}
            self._watcher.restarted(self.step, figures, self._spent.seconds)

    def _measure(self, plan: StepPlan, result: StepResult, seconds: float) -> None:
        meters = self._meters
        meters.num_steps += 1
        meters.seconds += seconds
        meters.num_target_tokens += plan.num_target_tokens
        meters.num_tokens += plan.num_tokens
        meters.num_padded_tokens += plan.num_padded_tokens
        meters.losses.append(torch.stack(result.loss_sums))
        if result.is_finite:
            meters.gradient_norm_sum += result.gradient_norm
            meters.num_finite_norms += 1

    def _finished_step(
        self, plan: StepPlan, result: StepResult, batches: dict[int, MicroBatch], seconds: float
    ) -> FinishedStep:
        num_own_tokens = sum(batch.num_target_tokens for batch in batches.values())
        return FinishedStep(seconds, plan.num_target_tokens, result.own_loss, num_own_tokens, self._spent.seconds)

    def _measure_fixed_cost(self, batches: dict[int, MicroBatch]) -> None:
        """Measures once, when caches are warm, the time of a batch that does not depend on its number of tokens."""
        is_due = self.step == self._first_step + _FIXED_COST_STEP and self.learner.clock.is_on
        if is_due and batches:
            beat("measuring the fixed cost of a batch")
            self._fixed_share = measure_fixed_share(self.learner, next(iter(batches.values())))

    def _log(self, learning_rate: float, batches: dict[int, MicroBatch]) -> None:
        """Collective: writes one record about the steps since the last one."""
        if not self._meters.num_steps:
            return
        figures = self._meters.read(self._world) | {
            "learning_rate": learning_rate,
            "loss_scale": self.learner.loss_scale.value,
            "skipped_steps": self.learner.loss_scale.num_skipped_steps,
            "epoch": self._stream.position.epoch,
            "training_seconds": self._training_seconds,
            "spent_seconds": self._spent.seconds,
        }
        figures["steps_per_second"] = 1 / figures["seconds_per_step"]
        if self._spent.cost is not None:
            figures["cost"] = self._spent.cost
        if (parts := read_parts(self.learner.clock, self._world)) is not None:
            figures |= parts.to_record() | {"fixed_share": self._fixed_share}
            figures["gradient_bytes"] = self.learner.gradients.flat.nbytes
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

    def _evaluate(self, is_last: bool = False) -> StopReason:
        """Collective: evaluates the model on the dev set; returns why it was interrupted, NONE if it was not."""
        # The last evaluation may take long, or even kill the process: what was learned is saved before.
        is_saved = is_last and self._is_saver and self._saver.save(self._state(), self.learner)
        self.learner.clock.switch(Part.EVALUATION)
        begin = time.perf_counter()
        try:
            evaluation = evaluate_on_dev(
                self.learner.model,
                self._corpus,
                self._settings,
                self._world,
                should_stop=lambda: self._stop.reason_to_stop_at_once() is not StopReason.NONE,
            )
        except EvaluationFailedError as error:
            self._stop.timer.leave_out(time.perf_counter() - begin)
            self._report_failed_evaluation(error)
            return StopReason.NONE
        finally:
            self.learner.clock.switch(Part.OTHER)
        if evaluation is None:
            return StopReason(self._world.start_vote(self._stop.reason_to_stop_at_once()).result())
        self._stop.timer.add_evaluation(evaluation.seconds)
        if is_saved:
            self._saver.mark_outdated()
        self._evaluation = {name: getattr(evaluation, name) for name in ("loss", "bleu", "chrf", "tokenizer")}
        self._watcher.evaluated(self.step, evaluation.figures())
        if self._world.is_first:
            self._save_translations(evaluation)
        return StopReason.NONE

    def _save_translations(self, evaluation: Evaluation) -> None:
        """Writes translations.jsonl; no fault here may end a run, whose scores are already in metrics.jsonl."""
        try:
            save_translations(self._run, self.step, evaluation)
        except Exception as error:
            self._watcher.say(
                f"The translations of step {self.step} could not be saved in {self._run.translations} "
                f"({type(error).__name__}: {error}). The run goes on without them."
            )

    def _report_failed_evaluation(self, error: EvaluationFailedError) -> None:
        """Says why there are no scores; a model that cannot be judged now can still be trained and saved."""
        details = write_traceback(self._run.path, self._world.rank, error.__cause__) if error.__cause__ else None
        where = f" Details are in {details}." if details else ""
        self._watcher.say(
            f"Step {self.step} could not be evaluated ({error}).{where} The run goes on without these scores; "
            f"to evaluate it later: {command_for(f'evaluate --checkpoint {self.step}', self._run.path)}"
        )

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
        if not self._is_saver:
            return
        self._report_saves()
        if self._is_save_due or self._saver.is_retry_due:
            self.learner.clock.switch(Part.CHECKPOINT)
            self._is_save_due = not self._saver.save(self._state(), self.learner)
            self.learner.clock.switch(Part.OTHER)

    def _save_and_wait(self, save: Callable[[TrainingState, Learner], None]) -> None:
        """Writes a checkpoint on a rank that saves; the others continue and wait for it at the next collective."""
        if not self._is_saver:
            return
        try:
            save(self._state(), self.learner)
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
        return TrainingState(
            step=self.step,
            num_updates=self._num_updates,
            position=self._stream.position,
            loss_scale=self.learner.loss_scale,
            training_seconds=self._training_seconds,
            model=self.learner.model.shape,
            data_fingerprint=self._corpus.fingerprint,
            evaluation=self._evaluation,
        )

    @property
    def _training_seconds(self) -> float:
        """Seconds that led to this step; what was lost to crashes and restarts is in `SpentTime` only."""
        return time.monotonic() - self._begin

    def _closing_message(self, reason: StopReason) -> str:
        """Returns the last message of a run."""
        cost = "" if self._spent.cost is None else f", cost {self._spent.cost:.2f}"
        steps = "1 step" if self.step == 1 else f"{self.step:,} steps"
        spent = f"after {steps} in {format_duration(self._spent.seconds)}, all starts included{cost}"
        used_up = self._settings.training.model_dump() if reason in (StopReason.TIME, StopReason.COST) else None
        resume = f"Continue with: {resume_command(self._run.path, used_up, self._spent.seconds)}"
        match reason:
            case StopReason.SIGNAL | StopReason.REQUEST:
                return f"Stopped on request {spent}; everything is saved. {resume}"
            case StopReason.HOST_BACK:
                return f"A host is back: paused {spent}; everything is saved."
            case StopReason.TIME:
                return f"training.max_hours is used up {spent}; everything is saved. {resume}"
            case StopReason.COST:
                return f"training.max_cost is used up {spent}; everything is saved. {resume}"
            case _:
                return f"Finished {spent}."
