"""Reports of rank 0 about the run, as log lines in the format of OpenSeq2Seq and as records; other ranks are silent."""

from dataclasses import dataclass
from typing import Any

from dragoman.diagnosis.prediction import NUM_FIRST_STEPS, NUM_SKIPPED_STEPS, Prediction, predict_from_steps
from dragoman.diagnosis.verdict import Verdict
from dragoman.diagnosis.wording import describe_parts, describe_prediction
from dragoman.monitoring.buffered_file import DiskTroubleReporter
from dragoman.monitoring.sinks import RunConsole, Sinks
from dragoman.monitoring.system_figures import SystemFigures
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder
from dragoman.run.line_follower import LineFollower
from dragoman.run.records import PredictionRecord, parse_records, records_of

_PREDICTION_MARK = '"prediction"'


def read_predicted_seconds(run: RunFolder, num_workers: int) -> float | None:
    """Returns the seconds per step that a resumed run predicted for as many workers; None if it did not."""
    try:
        with LineFollower(run.metrics) as metrics:
            # Only these lines are parsed: a long run has tens of thousands of others, and a restart should be quick.
            lines = [line for line in metrics.read_lines() if _PREDICTION_MARK in line]
    except UserError:
        return None
    records = records_of(parse_records(lines), PredictionRecord)
    same = [record for record in records if record.workers == num_workers]
    return same[-1].seconds_per_step.predicted if same else None


class PredictionCheck:
    """Compares measured steps with the prediction; without a measured one, predicts from the first steps."""

    def __init__(self, num_workers: int = 1, expected_seconds: float | None = None) -> None:
        self._num_workers = num_workers
        self._expected_seconds = expected_seconds
        self._first_steps: list[float] = []

    def expect(self, prediction: Prediction) -> None:
        """Uses this prediction from now on."""
        self._expected_seconds = prediction.seconds

    def add_step(self, seconds: float) -> Prediction | None:
        """Adds a step; returns a prediction once there are enough steps, if there was none."""
        if self._expected_seconds is not None:
            return None
        self._first_steps.append(seconds)
        if len(self._first_steps) < NUM_SKIPPED_STEPS + NUM_FIRST_STEPS:
            return None
        prediction = predict_from_steps(self._first_steps[NUM_SKIPPED_STEPS:], self._num_workers)
        self.expect(prediction)
        return prediction

    def compare(self, seconds_per_step: float) -> dict[str, float]:
        """Returns the prediction and its error for a train record; empty while there is no prediction."""
        if not self._expected_seconds:
            return {}
        return {
            "predicted_seconds_per_step": self._expected_seconds,
            "prediction_error": seconds_per_step / self._expected_seconds - 1,
        }


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

    def restarted(self, step: int, figures: dict[str, Any]) -> None:
        """Reports that the run continues from a checkpoint."""

    def progressed(self, step: int, seconds: float | None = None) -> None:
        """Reports a step and how long it took."""

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
        num_steps: int,
        prediction_check: PredictionCheck | None = None,
        system: SystemFigures | None = None,
    ) -> None:
        self._console = console
        self._sinks = sinks
        self._prediction_check = prediction_check or PredictionCheck()
        self._system = system
        self._disk_trouble = DiskTroubleReporter((console.log_file, *sinks.files))
        self._num_steps = num_steps
        self._train: dict[str, Any] = {"loss": None, "seconds_per_step": 0.0, "target_tokens_per_second": 0.0}
        self._bleu: float | None = None

    def say(self, text: str) -> None:
        """Shows a message."""
        self._console.say(text)
        self._report_disk_trouble()

    def restarted(self, step: int, figures: dict[str, Any]) -> None:
        """Reports that the run continues from a checkpoint."""
        self._sinks.write("restart", step, figures)
        self._console.say(f"Continuing from the checkpoint of step {step}.")

    def progressed(self, step: int, seconds: float | None = None) -> None:
        """Reports a step and how long it took."""
        if seconds is not None and (prediction := self._prediction_check.add_step(seconds)) is not None:
            self._sinks.write("prediction", step, prediction.to_json())
        train = self._train
        seconds_left = (self._num_steps - step) * train["seconds_per_step"]
        self._console.show_progress(step, train["loss"], self._bleu, train["target_tokens_per_second"], seconds_left)
        self._report_disk_trouble()

    def predicted(self, step: int, prediction: Prediction) -> None:
        """Reports how long steps are expected to take."""
        self._prediction_check.expect(prediction)
        self._sinks.write("prediction", step, prediction.to_json())
        for line in describe_prediction(prediction):
            self._console.say(line)
        for advice in prediction.advice:
            self._console.say(f"What would help: {advice}")
        for problem in prediction.problems:
            self._console.say(f"PROBLEM: {problem}")

    def trained(self, step: int, figures: dict[str, Any], sample: PredictionSample | None) -> None:
        """Reports the figures of an interval of steps."""
        self._train = figures
        figures = figures | self._prediction_check.compare(figures["seconds_per_step"])
        system = self._system.read() if self._system else None
        self._sinks.write("train", step, figures | system.to_record() if system else figures)
        if system:
            self._sinks.write_scalars(step, system.scalars())
        self._console.log(f"*** Global step {step}: ***     Train loss: {figures['loss']:.4f} ")
        self._console.log(f"time per step = {openseq2seq_duration(figures['seconds_per_step'])}")
        self._console.log(
            f"***     {figures['target_tokens_per_second']:,.0f} target tokens/s, "
            f"learning rate {figures['learning_rate']:.3e}, gradient norm {figures['gradient_norm']:.3f}, "
            f"padding {figures['padding_share']:.1%}"
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
            for message in (verdict.why, *verdict.misleading):
                self._console.say(message)

    def evaluated(self, step: int, figures: dict[str, Any]) -> None:
        """Reports an evaluation on the dev set."""
        self._bleu = figures["bleu"]
        self.progressed(step)
        self._sinks.write("evaluation", step, figures)
        self._console.log("*** Running evaluation on a validation set:")
        self._console.log(f"***     Validation loss: {figures['loss']:.4f} ")
        self._console.say(
            f"step {step}: BLEU {figures['bleu']:.2f} on the dev set, loss {figures['loss']:.4f}, "
            f"in {figures['seconds']:.1f} s ({figures['signature']})"
        )

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
