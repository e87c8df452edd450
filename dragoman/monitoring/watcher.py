"""Reports of rank 0 about the run, as log lines in the format of OpenSeq2Seq and as records; other ranks are silent."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from dragoman.diagnosis.prediction import NUM_FIRST_STEPS, NUM_SKIPPED_STEPS, Prediction, predict_from_steps
from dragoman.diagnosis.verdict import Verdict
from dragoman.diagnosis.wording import describe_parts, describe_prediction
from dragoman.monitoring.buffered_file import DiskTroubleReporter
from dragoman.monitoring.pace import FinishedStep, Pace
from dragoman.monitoring.progress_line import ProgressFigures
from dragoman.monitoring.sinks import RunConsole, Sinks
from dragoman.monitoring.system_figures import SystemFigures
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder
from dragoman.run.line_follower import LineFollower
from dragoman.run.records import MachineLoad, PredictionRecord, RestartRecord, TrainRecord, parse_records, records_of
from dragoman.run.units import SCORE_PATTERNS, format_duration

_PREDICTION_MARK, _RESTART_MARK, _TRAIN_MARK = '"prediction"', '"restart"', '"train"'
_NUM_RECENT_RECORDS = 5
_FIRST_LINES = (1, 3, 10)
"""Steps after the start that get a line in a log too: every log_every-th step may be an hour."""


@dataclass(frozen=True)
class KnownSpeed:
    """Seconds per full step with as many workers as now, from the records of a resumed run; None where it has none."""

    predicted: float | None = None
    recorded: float | None = None
    """What its last steps took."""


def read_known_speed(run: RunFolder, num_workers: int) -> KnownSpeed:
    """Reads metrics.jsonl once; only a few of its lines are parsed: a long run has tens of thousands."""
    try:
        with LineFollower(run.metrics) as metrics:
            lines = list(metrics.read_lines())
    except UserError:
        return KnownSpeed()
    return KnownSpeed(_predicted_seconds(lines, num_workers), _recorded_seconds(lines, num_workers))


def _predicted_seconds(lines: Sequence[str], num_workers: int) -> float | None:
    """Returns the last prediction for as many workers."""
    records = records_of(parse_records([line for line in lines if _PREDICTION_MARK in line]), PredictionRecord)
    same = [record for record in records if record.workers == num_workers]
    return same[-1].seconds_per_step.predicted if same else None


def _recorded_seconds(lines: Sequence[str], num_workers: int) -> float | None:
    """Returns what the last steps took; None if there was another number of workers then."""
    starts = [number for number, line in enumerate(lines) if _PREDICTION_MARK in line or _RESTART_MARK in line]
    begin = starts[-1] if starts else 0
    [start, *_] = [*parse_records(lines[begin : begin + 1]), None]
    is_same = isinstance(start, PredictionRecord | RestartRecord) and start.workers == num_workers
    recent = [line for line in lines[begin:] if _TRAIN_MARK in line][-_NUM_RECENT_RECORDS:]
    records = records_of(parse_records(recent), TrainRecord) if is_same else []
    seconds = [seconds for record in records if (seconds := record.seconds_per_full_step)]
    return median(seconds) if seconds else None


class PredictionCheck:
    """Compares measured steps with the prediction; without a measured one, predicts from the first steps."""

    def __init__(self, num_workers: int = 1, expected_seconds: float | None = None) -> None:
        self._num_workers = num_workers
        self._expected_seconds = expected_seconds
        self._first_steps: list[float] = []

    def expect(self, prediction: Prediction) -> None:
        """Uses this prediction from now on."""
        self._expected_seconds = prediction.seconds

    def add_step(self, seconds: float, read_loads: Callable[[], Sequence[MachineLoad]] = tuple) -> Prediction | None:
        """Adds the seconds of a full step; returns a prediction once there are enough, if there was none."""
        if self._expected_seconds is not None:
            return None
        self._first_steps.append(seconds)
        if len(self._first_steps) < NUM_SKIPPED_STEPS + NUM_FIRST_STEPS:
            return None
        prediction = predict_from_steps(self._first_steps[NUM_SKIPPED_STEPS:], self._num_workers, read_loads())
        self.expect(prediction)
        return prediction

    def compare(self, seconds_per_step: float, batch_share: float = 1.0) -> dict[str, float]:
        """Returns the prediction and its error for a train record; empty while there is no prediction.

        Batches that are smaller than full ones, by `batch_share`, are expected to take as much less time.
        """
        if not self._expected_seconds:
            return {}
        expected = batch_share * self._expected_seconds
        return {"predicted_seconds_per_step": expected, "prediction_error": seconds_per_step / expected - 1}


@dataclass(frozen=True)
class PredictionSample:
    """A training pair and the model's teacher-forced prediction, as subwords."""

    source: list[str]
    target: list[str]
    prediction: list[str]


class Watcher:
    """Receives the events of a run. This base class ignores them; all ranks except rank 0 use it."""

    def say(self, text: str) -> None:
        """Shows a message."""

    def restarted(self, step: int, figures: dict[str, Any] | None, spent_seconds: float = 0.0) -> None:
        """Reports that the run continues from a checkpoint, and its time so far; None if it is recorded."""

    def progressed(self, step: int, finished: FinishedStep | None = None) -> None:
        """Reports a step and its figures."""

    def predicted(self, step: int, prediction: Prediction) -> None:
        """Reports how long steps are expected to take."""

    def trained(self, step: int, figures: dict[str, Any], sample: PredictionSample | None) -> None:
        """Reports the figures of an interval of steps."""

    def diagnosed(self, step: int, verdict: Verdict) -> None:
        """Reports at the end what limited the run."""

    def evaluated(self, step: int, figures: dict[str, Any]) -> None:
        """Reports an evaluation on the dev set."""

    def saved(self, step: int, figures: dict[str, Any]) -> None:
        """Reports a saved checkpoint."""

    def save_failed(self, step: int, error: str) -> None:
        """Reports a checkpoint that could not be written."""


class RunWatcher(Watcher):
    """Writes log lines and records, and updates the progress bar."""

    def __init__(
        self,
        console: RunConsole,
        sinks: Sinks,
        pace: Pace,
        prediction_check: PredictionCheck | None = None,
        system: SystemFigures | None = None,
        metric: str = "bleu",
    ) -> None:
        self._console = console
        self._sinks = sinks
        self._pace = pace
        self._prediction_check = prediction_check or PredictionCheck()
        self._system = system
        self._disk_trouble = DiskTroubleReporter((console.log_file, *sinks.files))
        self._metric = metric
        self._score = ""
        self._num_progressed = 0

    def say(self, text: str) -> None:
        """Shows a message."""
        self._console.say(text)
        self._report_disk_trouble()

    def restarted(self, step: int, figures: dict[str, Any] | None, spent_seconds: float = 0.0) -> None:
        """Reports that the run continues from a checkpoint, and its time so far; None if it is recorded."""
        if figures is not None:
            self._sinks.write("restart", step, figures)
        self._console.say(f"Continuing from the checkpoint of step {step}.")
        self._pace.spend(spent_seconds)
        self._say_expectation(step)

    def progressed(self, step: int, finished: FinishedStep | None = None) -> None:
        """Reports a step and its figures."""
        if finished is not None:
            self._pace.add_step(finished)
            full_seconds = finished.seconds / finished.batch_share
            if (prediction := self._prediction_check.add_step(full_seconds, self._read_loads)) is not None:
                self._sinks.write("prediction", step, prediction.to_json())
                self._say_expectation(step, prediction.other_load)
            self._num_progressed += 1
            if self._num_progressed in _FIRST_LINES:
                self._console.log(f"step {step}: {', '.join(filter(None, self._progress_figures(step).texts()))}")
        self._console.show_progress(step, self._progress_figures(step))
        self._report_disk_trouble()

    def _read_loads(self) -> Sequence[MachineLoad]:
        return self._system.peek().loads() if self._system else ()

    def _progress_figures(self, step: int) -> ProgressFigures:
        pace = self._pace
        return ProgressFigures(pace.loss, self._score, pace.tokens_per_second, pace.seconds_left(step))

    def predicted(self, step: int, prediction: Prediction) -> None:
        """Reports how long steps are expected to take, and the whole run."""
        self._prediction_check.expect(prediction)
        self._pace.expect(prediction.seconds)
        self._sinks.write("prediction", step, prediction.to_json())
        for line in describe_prediction(prediction) if prediction.parts else []:
            self._console.say(line)
        self._say_expectation(step, "" if prediction.parts else prediction.other_load)
        for advice in prediction.advice:
            self._console.say(f"What would help: {advice}")
        for problem in prediction.problems:
            self._console.say(f"PROBLEM: {problem}")

    def _say_expectation(self, step: int, other_load: str = "") -> None:
        if expectation := self._pace.describe_expectation(step):
            self._console.say(expectation)
            if other_load:
                self._console.say(f"This is uncertain: {other_load} while it was measured.")

    def trained(self, step: int, figures: dict[str, Any], sample: PredictionSample | None) -> None:
        """Reports the figures of an interval of steps."""
        figures = figures | self._prediction_check.compare(figures["seconds_per_step"], figures.get("batch_share", 1.0))
        system = self._system.read() if self._system else None
        self._sinks.write("train", step, figures | system.to_record() if system else figures)
        if system:
            self._sinks.write_scalars(step, system.scalars())
        self._console.log(f"*** Global step {step}: ***     Train loss: {figures['loss']:.4f} ")
        self._console.log(f"time per step = {openseq2seq_duration(figures['seconds_per_step'])}")
        self._console.log(
            f"***     {figures['target_tokens_per_second']:,.0f} target tokens/s, "
            f"learning rate {figures['learning_rate']:.3e}, gradient norm {figures['gradient_norm']:.3f}, "
            f"padding {figures['padding_share']:.1%}{self._time_left(step)}"
        )
        if "attribution" in figures:
            self._console.log(f"***     A step: {describe_parts(figures['attribution'])}")
        if sample is not None:
            for name, subwords in vars(sample).items():
                self._console.log(f"***     {f'Train {name.title()}[0]:':<20} {' '.join(subwords)}")

    def diagnosed(self, step: int, verdict: Verdict) -> None:
        """Reports at the end what limited the run."""
        if verdict.is_known:
            self._sinks.write("verdict", step, verdict.to_json())
            for message in (verdict.why, *verdict.misleading, *verdict.advice):
                self._console.say(message)

    def evaluated(self, step: int, figures: dict[str, Any]) -> None:
        """Reports an evaluation on the dev set."""
        is_first = self._pace.evaluation_seconds is None
        self._pace.add_evaluation(step, figures["seconds"])
        self._score = SCORE_PATTERNS[self._metric].format(figures[self._metric])
        self.progressed(step)
        self._sinks.write("evaluation", step, figures)
        self._console.log("*** Running evaluation on a validation set:")
        self._console.log(f"***     Validation loss: {figures['loss']:.4f} ")
        chrf = f"chrF {figures['chrf']:.2f}, " if self._metric == "chrf" else ""
        self._console.say(
            f"step {step}: {chrf}BLEU {figures['bleu']:.2f} on the dev set{self._describe_weights(figures)}, "
            f"loss {figures['loss']:.4f}, in {figures['seconds']:.1f} s ({figures['signature']})"
        )
        if is_first:
            self._say_expectation(step)

    def _describe_weights(self, figures: dict[str, Any]) -> str:
        """Says which weights the figures belong to and how the others scored; empty where there is no average."""
        other = figures.get("other_weights")
        if other is None:
            return ""
        score = SCORE_PATTERNS[self._metric].format(other[self._metric])
        kinds = ("averaged", "trained") if figures["weights"] == "averaged" else ("trained", "averaged")
        return f" with {kinds[0]} weights ({kinds[1]}: {score})"

    def _time_left(self, step: int) -> str:
        """The end of a log line; empty where the time is not known."""
        seconds = self._pace.seconds_left(step)
        return "" if seconds is None else f", {format_duration(seconds)} left"

    def saved(self, step: int, figures: dict[str, Any]) -> None:
        """Reports a saved checkpoint."""
        self._sinks.write("checkpoint", step, figures)
        self._console.log(f"*** Saved checkpoint of step {step} to {figures['path']}")

    def save_failed(self, step: int, error: str) -> None:
        """Reports a checkpoint that could not be written."""
        self._sinks.write("checkpoint_failed", step, {"error": error})
        self._console.say(f"{error} Earlier checkpoints are intact; training continues and tries again to save.")

    def _report_disk_trouble(self) -> None:
        if (message := self._disk_trouble.next_message()) is not None:
            self._console.say(message)


def openseq2seq_duration(seconds: float) -> str:
    """Formats a duration as OpenSeq2Seq does: 0:00:1.946, seconds not padded."""
    minutes, rest = divmod(round(seconds, 3), 60)
    return f"{int(minutes // 60)}:{int(minutes % 60):02d}:{rest:.3f}"
