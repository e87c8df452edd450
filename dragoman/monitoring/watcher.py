"""Rank 0 tells the world about the run, in the seeds' log lines and in records; other ranks keep silent."""

from collections import defaultdict
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from dragoman.diagnosis.prediction import NUM_FIRST_STEPS, NUM_SKIPPED_STEPS, Prediction, predict_from_steps
from dragoman.diagnosis.verdict import Verdict
from dragoman.diagnosis.wording import describe_parts, describe_prediction
from dragoman.monitoring.buffered_file import OutageNews
from dragoman.monitoring.console import RunConsole
from dragoman.monitoring.sinks import Sinks
from dragoman.monitoring.system_figures import SystemFigures
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder
from dragoman.run.following import LineFollower
from dragoman.run.status import number_or_none
from dragoman.run.summary import parse_record

BYTES_PER_MEGABYTE = 1e6
LOOPBACK = "lo"


def machine_figures(system: dict[str, float]) -> dict[str, Any]:
    """From the figures of an interval by their TensorBoard names; empty where nothing was sampled."""
    figures: dict[str, Any] = {}
    if traffic := _traffic(system):
        figures["traffic"] = traffic
    utilisation = {
        "cpu": [value for name, value in system.items() if name.endswith("/cpu")],
        "gpu": [value for name, value in system.items() if name.endswith("/utilisation")],
    }
    if busy := {kind: fmean(values) for kind, values in utilisation.items() if values}:
        figures["utilisation"] = busy
    return figures


def _traffic(system: dict[str, float]) -> dict[str, Any] | None:
    """Of the interface that carried most: between machines if there are several, otherwise whichever it is."""
    rates: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for name, value in system.items():
        match name.split("/"):
            case ["system", node, "network", interface, ("sent_MB_per_s" | "received_MB_per_s") as way]:
                rates[node, interface][way.split("_")[0]] = value * BYTES_PER_MEGABYTE
    if len({node for node, _ in rates}) > 1:
        rates = defaultdict(dict, {place: found for place, found in rates.items() if place[1] != LOOPBACK})
    if not rates:
        return None
    (node, interface), found = max(rates.items(), key=lambda item: sum(item[1].values()))
    return {
        "host": node,
        "interface": interface,
        "sent_bytes_per_second": found.get("sent", 0.0),
        "received_bytes_per_second": found.get("received", 0.0),
    }


PREDICTION_MARK = '"prediction"'


def expected_before(run: RunFolder, num_workers: int) -> float | None:
    """What a run that is resumed expected of a step with as many workers; None if it did not."""
    try:
        with LineFollower(run.metrics) as metrics:
            # Only these lines are parsed: a long run has tens of thousands of others, and a restart should not wait.
            records = [parse_record(line) for line in metrics.read_lines() if PREDICTION_MARK in line]
    except UserError:
        return None
    same = [
        each
        for each in filter(None, records)
        if each.get("kind") == "prediction" and each.get("workers") == num_workers
    ]
    told = same[-1].get("seconds_per_step") if same else None
    return number_or_none(told.get("predicted")) if isinstance(told, dict) else None


class Foresight:
    """Holds the prediction; where nothing was rehearsed it is made from the first steps."""

    def __init__(self, num_workers: int = 1, expected_seconds: float | None = None) -> None:
        self._num_workers = num_workers
        self._expected_seconds = expected_seconds
        self._first_steps: list[float] = []

    def expect(self, prediction: Prediction) -> None:
        """Takes a prediction that was rehearsed."""
        self._expected_seconds = prediction.seconds

    def learn(self, seconds: float) -> Prediction | None:
        """Takes note of a step; a prediction once the first ones have been seen, if there was none."""
        if self._expected_seconds is not None:
            return None
        self._first_steps.append(seconds)
        if len(self._first_steps) < NUM_SKIPPED_STEPS + NUM_FIRST_STEPS:
            return None
        prediction = predict_from_steps(self._first_steps[NUM_SKIPPED_STEPS:], self._num_workers)
        self.expect(prediction)
        return prediction

    def compare(self, seconds_per_step: float) -> dict[str, float]:
        """What was expected beside what came; nothing as long as nothing is expected."""
        if not self._expected_seconds:
            return {}
        return {
            "predicted_seconds_per_step": self._expected_seconds,
            "prediction_error": seconds_per_step / self._expected_seconds - 1,
        }


@dataclass(frozen=True)
class Sample:
    """One training pair and what the model predicts when fed with the reference, as pieces."""

    source: list[str]
    target: list[str]
    prediction: list[str]


class Watcher:
    """Hears what happens in a run, when it happens; this one, for all ranks but the first, keeps it to itself."""

    def say(self, text: str) -> None:
        """A sentence for the person."""

    def restarted(self, step: int, figures: dict[str, Any]) -> None:
        """The run continues from a checkpoint."""

    def progressed(self, step: int, seconds: float | None = None) -> None:
        """A step was made, in so many seconds."""

    def predicted(self, step: int, prediction: Prediction) -> None:
        """What is expected of the steps to come."""

    def trained(self, step: int, figures: dict[str, Any], sample: Sample | None) -> None:
        """An interval of steps was made, with these figures."""

    def judged(self, step: int, verdict: Verdict) -> None:
        """What held the run back, at its end."""

    def evaluated(self, step: int, figures: dict[str, Any]) -> None:
        """The dev set was judged."""

    def saved(self, step: int, figures: dict[str, Any]) -> None:
        """A checkpoint was written."""

    def save_failed(self, step: int, error: str) -> None:
        """A checkpoint could not be written."""


class RunWatcher(Watcher):
    """Writes log lines and records, and moves the bar."""

    def __init__(
        self,
        console: RunConsole,
        sinks: Sinks,
        num_steps: int,
        foresight: Foresight | None = None,
        system: SystemFigures | None = None,
    ) -> None:
        self._console = console
        self._sinks = sinks
        self._foresight = foresight or Foresight()
        self._system = system
        self._outage_news = OutageNews((console.log_file, *sinks.files))
        self._num_steps = num_steps
        self._train: dict[str, Any] = {}
        self._bleu: float | None = None

    def say(self, text: str) -> None:
        """A sentence for the person."""
        self._console.say(text)
        self._tell_of_outage()

    def restarted(self, step: int, figures: dict[str, Any]) -> None:
        """The run continues from a checkpoint."""
        self._sinks.write("restart", step, figures)
        self._console.say(f"Continuing from the checkpoint of step {step}.")

    def progressed(self, step: int, seconds: float | None = None) -> None:
        """A step was made, in so many seconds."""
        if seconds is not None and (prediction := self._foresight.learn(seconds)) is not None:
            self._sinks.write("prediction", step, prediction.to_json())
        seconds_left = (self._num_steps - step) * self._train.get("seconds_per_step", 0.0)
        tokens_per_second = self._train.get("target_tokens_per_second", 0.0)
        self._console.show_progress(step, self._train.get("loss"), self._bleu, tokens_per_second, seconds_left)
        self._tell_of_outage()

    def predicted(self, step: int, prediction: Prediction) -> None:
        """What is expected of the steps to come."""
        self._foresight.expect(prediction)
        self._sinks.write("prediction", step, prediction.to_json())
        for line in describe_prediction(prediction):
            self._console.say(line)
        for sentence in prediction.advice:
            self._console.say(f"What would help: {sentence}")
        for problem in prediction.problems:
            self._console.say(f"PROBLEM: {problem}")

    def trained(self, step: int, figures: dict[str, Any], sample: Sample | None) -> None:
        """An interval of steps was made, with these figures."""
        self._train = figures
        system = self._system.read() if self._system else {}
        figures = figures | self._foresight.compare(figures["seconds_per_step"]) | machine_figures(system)
        self._sinks.write("train", step, figures)
        self._sinks.show(step, system)
        self._console.log(f"*** Global step {step}: ***     Train loss: {figures['loss']:.4f} ")
        self._console.log(f"time per step = {seeds_duration(figures['seconds_per_step'])}")
        self._console.log(
            f"***     {figures['target_tokens_per_second']:,.0f} target tokens/s, "
            f"learning rate {figures['learning_rate']:.3e}, gradient norm {figures['gradient_norm']:.3f}, "
            f"padding {figures['padding_share']:.1%}"
        )
        if "attribution" in figures:
            self._console.log(f"***     A step: {describe_parts(figures['attribution'])}")
        if sample is not None:
            for name, pieces in (
                ("Source", sample.source),
                ("Target", sample.target),
                ("Prediction", sample.prediction),
            ):
                self._console.log(f"***     {f'Train {name}[0]:':<20} {' '.join(pieces)}")

    def judged(self, step: int, verdict: Verdict) -> None:
        """What held the run back, at its end."""
        if verdict.is_known:
            self._sinks.write("verdict", step, verdict.to_json())
            for sentence in (verdict.why, *verdict.misleading):
                self._console.say(sentence)

    def evaluated(self, step: int, figures: dict[str, Any]) -> None:
        """The dev set was judged."""
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
        """A checkpoint was written."""
        self._sinks.write("checkpoint", step, figures)
        self._console.log(f"*** Saved checkpoint of step {step} to {figures['path']}")

    def save_failed(self, step: int, error: str) -> None:
        """A checkpoint could not be written."""
        self._sinks.write("checkpoint_failed", step, {"error": error})
        self._console.say(f"{error} Earlier checkpoints are untouched; training goes on, and so do attempts to save.")

    def _tell_of_outage(self) -> None:
        """Once per outage; asked at every step, because the files themselves cannot speak."""
        if (sentence := self._outage_news.next_sentence()) is not None:
            self._console.say(sentence)


def seeds_duration(seconds: float) -> str:
    """A duration as the seeds' log prints it: 0:00:1.946, seconds not padded."""
    minutes, rest = divmod(round(seconds, 3), 60)
    return f"{int(minutes // 60)}:{int(minutes % 60):02d}:{rest:.3f}"
