"""Charts of loss and scores over the steps: with forecasts for the answers, without them for the first screen."""

from collections.abc import Sequence

import numpy as np

from dragoman.diagnosis.forecast import Forecast
from dragoman.report.content import Chart, Look, Mark, Series
from dragoman.report.evidence import Floats, curve
from dragoman.report.findings import Findings

_NUM_CURVE_POINTS = 80
_HIDDEN_SHARE = 0.03
"""Share of the steps left out of the loss chart: losses fall so fast at first that nothing else would be visible."""
_MAX_MARKS = 20


def overview_charts(findings: Findings) -> list[Chart]:
    """Returns the learning curves of the first screen: losses, and the score of the translations."""
    loss = _loss_chart(findings, "overview-loss", [])
    return [chart for chart in (loss, _overview_score(findings)) if chart is not None and chart.series]


def learning_charts(findings: Findings) -> list[Chart]:
    """Returns the charts of losses and scores, with their forecasts."""
    ahead = _forecast_series(findings.loss_forecast) if findings.loss_forecast is not None else []
    charts = [
        _loss_chart(findings, "loss", ahead),
        _bleu_chart(findings),
        _other_score_chart(findings, "score"),
    ]
    return [chart for chart in charts if chart is not None]


def _loss_chart(findings: Findings, key: str, ahead: Sequence[Series]) -> Chart | None:
    steps, losses = findings.dev_loss
    train_steps, train = curve(findings.evidence.train, "loss")
    if not len(steps) and not len(train_steps):
        return None
    last = findings.evidence.last_step or 0
    begin = 0.0 if findings.evidence.unseen_steps else _HIDDEN_SHARE * last
    sample_steps, sample = curve(findings.evaluations, "train_sample_loss")
    series = [
        _from(begin, "training", train_steps, train, "line"),
        _from(begin, "dev set", steps, losses, "points"),
        _from(begin, "training sentences, without dropout", sample_steps, sample, "dashed"),
        *ahead,
    ]
    hidden = f" The first {_HIDDEN_SHARE:.0%} of the steps are not shown." if begin else ""
    note = f"Training loss is measured with dropout, dev loss without.{hidden}" if len(steps) and len(train) else ""
    shown = [each for each in series if len(each.x)]
    return Chart(key, "Loss", findings.evidence.step_noun, findings.loss_unit, shown, _marks(findings), note=note)


def _marks(findings: Findings) -> list[Mark]:
    marks = [Mark(restart.step, "restart") for restart in findings.evidence.restarts[:_MAX_MARKS]]
    nan_step = findings.evidence.first_nan_step
    return marks if nan_step is None else [*marks, Mark(nan_step, "NaN")]


def _from(begin: float, name: str, steps: Floats, values: Floats, look: Look) -> Series:
    is_shown = steps >= begin
    return Series(name, steps[is_shown].tolist(), values[is_shown].tolist(), look)


def _overview_score(findings: Findings) -> Chart | None:
    if findings.score is not None and findings.score.key != "bleu":
        return _other_score_chart(findings, "overview-score")
    return _bleu_chart(findings, "overview-score", has_forecast=False)


def _bleu_chart(findings: Findings, key: str = "bleu", has_forecast: bool = True) -> Chart | None:
    steps, values = findings.bleu
    is_trained = steps > 0
    if not np.any(is_trained):
        return None
    unit = findings.bleu_unit
    series = [Series("dev set", steps[is_trained].tolist(), (unit * values[is_trained]).tolist(), "points")]
    if findings.bleu_forecast is not None and has_forecast:
        series += _forecast_series(findings.bleu_forecast, unit)
    if findings.is_bleu_forced:
        label, note = "teacher-forced BLEU of subwords, 0 to 1", "This is not the BLEU of translations."
        return Chart(key, "Teacher-forced BLEU", findings.evidence.step_noun, label, series, note=note)
    return Chart(
        key,
        "BLEU",
        findings.evidence.step_noun,
        "BLEU of translations, 0 to 100",
        series,
        note=_note_failed(findings, "bleu"),
    )


def _other_score_chart(findings: Findings, key: str) -> Chart | None:
    """Returns the chart of chrF or another score, where that is the score of the task."""
    score = findings.score
    if score is None or score.key == "bleu":
        return None
    series = [Series("dev set", [float(step) for step in score.steps], score.values, "points")]
    better = " (lower is better)" if score.is_lower_better else ""
    note = _note_failed(findings, score.key)
    return Chart(
        key, score.name, findings.evidence.step_noun, f"{score.name} of the dev set{better}", series, note=note
    )


def _note_failed(findings: Findings, key: str) -> str:
    number = sum(each.key == key for each in findings.failed_scores)
    return "" if not number else f"{number} failed score{'s are' if number > 1 else ' is'} not shown."


def _forecast_series(found: Forecast, unit: float = 1.0) -> list[Series]:
    """The fitted curve, continued by half the run, with its interval."""
    begin = max(1.0, _HIDDEN_SHARE * found.last_step)
    steps = np.linspace(begin, found.last_step * 1.5, _NUM_CURVE_POINTS)
    ahead = steps[steps >= found.last_step]
    expected = found.fit.predict(ahead.tolist())
    line = unit * found.fit.curve(steps.tolist()).value
    return [
        Series("fit and forecast", steps.tolist(), line.tolist(), "dashed"),
        Series("90% interval", ahead.tolist(), (unit * expected.high).tolist(), "band", (unit * expected.low).tolist()),
    ]
