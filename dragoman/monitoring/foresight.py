"""What was expected of a run's steps, and how wrong that is, all along."""

from dragoman.diagnosis.prediction import NUM_FIRST_STEPS, NUM_SKIPPED_STEPS, Prediction, predict_from_steps
from dragoman.run.errors import UserError
from dragoman.run.folder import RunFolder
from dragoman.run.following import LineFollower
from dragoman.run.status import number_or_none
from dragoman.run.summary import parse_record

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
