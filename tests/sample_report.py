"""A realistic report with every kind of content, and a hostile one, to test how reports are rendered."""

import math
import random
from dataclasses import replace

from dragoman.diagnosis.verdict import Verdict
from dragoman.report.content import (
    Answer,
    Chart,
    Comparison,
    Mark,
    Report,
    ReportSection,
    ReportWarning,
    RunState,
    Series,
    Table,
    TranslationSample,
)

HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)> \x1b[31mred\x1b[0m |a| `b` [c](http://x) $1 $2 &"
)
"""Text that would control a page, a table, a formula or a terminal if it were not escaped."""


def sample_report() -> Report:
    """A run of two machines with four GPUs and a slow network."""
    return Report(
        title="en-de-base: Transformer base, 2 × 2 V100",
        summary=(
            "A Transformer base of 60.9 million parameters learned English to German for 57.4 hours on two machines "
            "with two V100 each. It reaches 26.4 BLEU on newstest2014 and is nearly fully trained: 10,000 more steps "
            "would bring 0.3 ± 0.4 BLEU. The 1 Gbit/s network limited it: 62% of each step was waiting for "
            "gradients. Send gradients in 16 bits, or use one machine with four GPUs."
        ),
        figures={
            "BLEU, newstest2014": "26.4",
            "evaluation loss": "1.547",
            "wall time": "57 h 24 min",
            "cost": "$344",
            "steps": "106,300",
            "median step": "1.94 s",
        },
        answers=_answers(),
        sections=_sections(),
        state=RunState("Stopped at 35%", "neutral", "106,300 of 300,000 planned steps."),
        warnings=[
            ReportWarning(
                "The log's BLEU of 0.3776 is teacher-forced: the decoder was fed the reference. "
                "It cannot be compared with published scores."
            ),
            ReportWarning(
                "A connection broke 3 times; training continued.",
                "The network between the machines failed for a moment. Look at the other machine's log.",
                "[v100a][[12510,1],0][btl_tcp.c:559:mca_btl_tcp_recv_blocking] recv(48) failed: Connection reset (104)",
            ),
            ReportWarning(
                "Step 41,200 to 41,950 were computed twice, because the run was restarted from an older checkpoint."
            ),
        ],
        verdict=Verdict(
            "network", 0.62, 0.86, "Each step sends 365 MB from each machine, which takes 2.9 s at 1 Gbit/s."
        ),
        overview=[_overview_loss(), _overview_bleu()],
        facts={"parameters": 60_880_896, "steps": {"first": 0, "last": 106_300}},
    )


def sample_comparison() -> Comparison:
    """Three runs side by side."""
    steps = list(range(1000, 50_001, 1000))
    runs = [
        Series(name, steps, [_loss(step * speed) for step in steps])
        for name, speed in (("base", 1.0), ("larger batch", 1.8), ("half the learning rate", 0.6))
    ]
    table = Table(
        "Settings that differ",
        ["setting", "base", "larger batch", "half the learning rate"],
        [["training.batch_tokens", "4,096", "8,192", "4,096"], ["training.learning_rate", "2.0", "2.0", "1.0"]],
        numeric_columns=(1, 2, 3),
    )
    chart = Chart("loss-by-step", "Evaluation loss by step", "step", "loss (nats per token)", runs)
    return Comparison(
        "Three runs compared",
        "The larger batch is significantly better after the same number of steps.",
        [ReportSection("Curves", charts=[chart]), ReportSection("Settings", tables=[table])],
        [ReportWarning("The runs were evaluated with different beam sizes.")],
    )


def hostile_report() -> Report:
    """A report in which every text tries to become markup."""
    chart = Chart(
        "evil",
        HOSTILE,
        HOSTILE,
        HOSTILE,
        [Series(f"{HOSTILE} {number}", [1, 2, 3], [1.0, None, math.inf]) for number in range(2)],
        marks=[Mark(2, HOSTILE)],
        note=HOSTILE,
    )
    table = Table(HOSTILE, [HOSTILE, "x"], [[HOSTILE, f"a\nb|{HOSTILE}"]])
    sample = TranslationSample(10, HOSTILE, HOSTILE, HOSTILE)
    return Report(
        HOSTILE,
        HOSTILE,
        RunState(HOSTILE, "bad", HOSTILE),
        {HOSTILE: HOSTILE},
        [Answer(HOSTILE, HOSTILE, [HOSTILE], 0.5, [chart], [table], [HOSTILE])],
        [ReportSection(HOSTILE, [HOSTILE], [chart], [table], [sample, sample], f"{HOSTILE}\n```\n" * 20)],
        [ReportWarning(HOSTILE, HOSTILE, HOSTILE)] * 5,
        Verdict(HOSTILE, 0.5, 0.5, HOSTILE),
    )


def _answers() -> list[Answer]:
    return [
        Answer(
            "How long did it take?",
            "57 hours and 24 minutes, of which 1 h 52 min were lost to a restart and its repeated steps.",
            ["training 54 h 10 min, evaluation 1 h 22 min, checkpoints 0 h 31 min", "cost: $344 at $6.00 an hour"],
            0.97,
            charts=[_phases()],
            short="57.4 hours",
        ),
        Answer(
            "Is the model fully trained, and how can you tell?",
            "Nearly: 10,000 more steps would lower the loss from 1.547 to 1.538 ± 0.006 and bring 0.3 ± 0.4 BLEU.",
            ["The loss fell by 0.9% over the last 20,000 steps.", "10,000 steps cost 5.6 h and $34."],
            0.74,
            charts=[_forecast(), _bleu()],
            missing=["BLEU of real translations was measured only twice; measure it every 5,000 steps."],
            short="Nearly",
        ),
        Answer(
            "Is it overfitting?",
            "No: training and evaluation loss fall together (difference grows by 0.001 ± 0.004 per 10,000 steps).",
            ["Use the checkpoint of step 106,300: it has the lowest evaluation loss."],
            0.92,
            charts=[_train_and_evaluation()],
            short="No",
        ),
        Answer(
            "Were the GPUs fully used?",
            "No: they reported 97% utilisation, but 62% of that time is the waiting kernel of NCCL.",
            ["achieved 14.1 TFLOP/s of 112 TFLOP/s (fp16 with tensor cores)"],
            0.81,
            charts=[_utilisation()],
            short="No: 38% busy",
        ),
        Answer(
            "Was the network the bottleneck?",
            "Yes: 62% of each step was waiting for gradients on the 1 Gbit/s link.",
            ["365 MB leave each machine in each step", "the link was busy 91% of the time"],
            0.86,
            charts=[_attribution()],
            tables=[_attribution_table()],
            short="Yes, 62%",
        ),
        Answer(
            "What does the learning-rate plot show, and why?",
            "It rises for 8,000 steps (warm-up) and then falls as 1/√step; it does not react to the loss.",
            ["lr = 2.0 · 512^-0.5 · min(step^-0.5, step · 8000^-1.5), at most 0.00099"],
            1.0,
            charts=[_learning_rate()],
            short="Warm-up, then 1/√step",
        ),
        Answer(
            "How big is the training set, in MB and lines?",
            "4,524,868 pairs of lines: 596 MB of English and 687 MB of German.",
            confidence=0.95,
            tables=[_corpus_table()],
            short="1,283 MB, 4.5 M lines",
        ),
        Answer(
            "What files make up a checkpoint?",
            "Three: the values (.data), their index (.index) and the graph (.meta).",
            confidence=0.6,
            missing=["The checkpoint itself was not found beside the log."],
            short="Three",
        ),
        Answer(
            "How big is it?",
            "731 MB, 12 bytes for each parameter: the value and two of Adam's.",
            confidence=0.55,
            short="731 MB",
        ),
        Answer(
            "How long is an average step?",
            "1.94 s (median; mean 2.02 s, 95% below 2.31 s), without drift.",
            ["217 of 1,063 slow steps are evaluations, 21 are checkpoints"],
            0.99,
            charts=[_step_times()],
            short="1.94 s",
        ),
        Answer(
            "How does the step time relate to the network traffic between nodes?",
            "Not known: the log has no traffic, and the interface was not counted.",
            confidence=0.0,
            charts=[_scatter()],
            missing=["Record bytes per step next time: dragoman does so by itself."],
        ),
    ]


def _sections() -> list[ReportSection]:
    samples = [
        TranslationSample(
            step,
            "The committee will meet again on Thursday to discuss the budget.",
            "Der Ausschuss wird am Donnerstag erneut zusammenkommen, um über den Haushalt zu beraten.",
            text,
            is_teacher_forced=step < 50_000,
        )
        for step, text in (
            (1_000, "Die die die die ."),
            (10_000, "Der Ausschuss wird am Donnerstag wieder das Budget."),
            (106_300, "Der Ausschuss wird am Donnerstag erneut zusammentreten, um über den Haushalt zu beraten."),
        )
    ]
    samples.append(TranslationSample(106_300, "Thank you.", "Vielen Dank.", "Vielen Dank."))
    scores = Table(
        "Scores",
        ["test set", "step", "BLEU", "chrF", "signature"],
        [
            ["newstest2013", "106,300", "25.1", "53.8", "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"],
            ["newstest2014", "106,300", "26.4", "55.9", "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"],
        ],
        numeric_columns=(1, 2, 3),
    )
    configuration = "[training]\n" + "\n".join(f"setting_{number} = {number * 1000}" for number in range(40)) + "\n"
    return [
        ReportSection("Translations over time", ["The same sentences at several steps."], samples=samples),
        ReportSection("Scores", tables=[scores]),
        ReportSection("Environment", text="Python 3.6.8\nTensorFlow 1.13.1\nNCCL 2.4.2 over eth0\n"),
        ReportSection("Configuration", ["As the run resolved it."], text=configuration),
    ]


def _loss(step: float) -> float:
    return 1.35 + 5.2 * (step + 400) ** -0.32 * 1.4


def _noise(seed: int, num: int, width: float) -> list[float]:
    generator = random.Random(seed)
    return [generator.gauss(0, width) for _ in range(num)]


def _noisy(values: list[float], seed: int, width: float) -> list[float]:
    return [value + noise for value, noise in zip(values, _noise(seed, len(values), width), strict=True)]


def _phases() -> Chart:
    hours = list(range(58))
    parts = {"training": 0.94, "evaluation": 0.03, "checkpoints": 0.03}
    stacks = [Series(name, hours, [share * 60] * 58, "stack") for name, share in parts.items()]
    restart = [Mark(22.4, "restart")]
    return Chart("phases", "Minutes of each hour", "hours since the start", "minutes", stacks, restart)


def _forecast() -> Chart:
    steps, ahead = list(range(500, 106_301, 500)), list(range(106_300, 126_301, 1000))
    middle = [_loss(step) for step in ahead]
    spread = [0.002 + 0.008 * number / len(ahead) for number in range(len(ahead))]
    series = [
        Series("evaluation loss", steps, _noisy([_loss(s) for s in steps], 1, 0.008)),
        Series("forecast", ahead, middle, "dashed"),
        Series(
            "90% interval",
            ahead,
            [m + s for m, s in zip(middle, spread, strict=True)],
            "band",
            low=[m - s for m, s in zip(middle, spread, strict=True)],
        ),
    ]
    marks = [Mark(8000, "end of warm-up"), Mark(41_950, "restart"), Mark(106_300, "now")]
    note = "The band holds the loss with 90% probability if the schedule is continued."
    return Chart(
        "forecast", "Evaluation loss and its forecast", "step", "loss (nats per token)", series, marks, note=note
    )


def _overview_loss() -> Chart:
    steps = list(range(500, 106_301, 500))
    series = [
        Series("training", steps, _noisy([_loss(s) for s in steps], 2, 0.04)),
        Series("dev", steps[::8], [_loss(s) + 0.02 for s in steps[::8]]),
    ]
    return Chart("overview-loss", "Loss", "step", "nats per token", series)


def _overview_bleu() -> Chart:
    return replace(_bleu(), key="overview-bleu", title="BLEU")


def _bleu() -> Chart:
    steps = [5_000, 20_000, 40_000, 60_000, 80_000, 106_300]
    series = [
        Series("newstest2013", steps, [14.2, 21.9, 23.6, 24.4, 24.8, 25.1]),
        Series("newstest2014", steps, [14.8, 22.7, None, 25.6, 26.1, 26.4]),
    ]
    return Chart("bleu", "BLEU of beam-search translations", "step", "BLEU", series, y_from_zero=True)


def _train_and_evaluation() -> Chart:
    steps = list(range(100, 106_301, 100))
    series = [
        Series("training loss", steps, _noisy([_loss(s) for s in steps], 2, 0.04)),
        Series("evaluation loss", steps[::50], [_loss(s) + 0.02 for s in steps[::50]]),
    ]
    return Chart("losses", "Training and evaluation loss", "step", "loss (nats per token)", series, is_x_log=True)


def _utilisation() -> Chart:
    hours = [minute / 20 for minute in range(1150)]
    series = [
        Series(f"gpu {rank}", hours, [min(100.0, 96 + rank + n) for n in _noise(rank, 1150, 0.8)]) for rank in range(4)
    ]
    return Chart("utilisation", "Utilisation of each GPU", "hours", "percent", series)


def _attribution() -> Chart:
    steps = list(range(0, 106_301, 1063))
    parts = {"forward": 0.22, "backward": 0.41, "waiting for the network": 1.2, "optimizer": 0.08, "other": 0.03}
    stacks = [
        Series(name, steps, [abs(size + n) for n in _noise(len(name), len(steps), size * 0.05)], "stack")
        for name, size in parts.items()
    ]
    return Chart("attribution", "Parts of the step time", "step", "seconds per step", stacks)


def _attribution_table() -> Table:
    rows = [["waiting for the network", "1.20", "62%"], ["backward", "0.41", "21%"], ["forward", "0.22", "11%"]]
    return Table("Parts of a step", ["part", "seconds", "share"], rows, numeric_columns=(1, 2))


def _learning_rate() -> Chart:
    steps = list(range(1, 106_301, 50))
    rates = [2.0 * 512**-0.5 * min(step**-0.5, step * 8000**-1.5) for step in steps]
    rate = [Series("learning rate", steps, rates)]
    return Chart("learning-rate", "Learning rate", "step", "learning rate", rate, [Mark(8000, "end of warm-up")])


def _corpus_table() -> Table:
    rows = [
        ["raw", "4,590,101", "605 MB", "698 MB"],
        ["cleaned", "4,524,868", "596 MB", "687 MB"],
        ["tokenised (32,000 subwords)", "4,524,868", "742 MB", "811 MB"],
    ]
    return Table("The training set", ["stage", "lines", "English", "German"], rows, numeric_columns=(1, 2, 3))


def _step_times() -> Chart:
    steps = list(range(0, 106_301, 20))
    seconds = [
        1.94 + abs(n) + (9.0 if s % 4000 == 0 else 0) for s, n in zip(steps, _noise(5, len(steps), 0.12), strict=True)
    ]
    marks = [Mark(41_950, "restart")]
    return Chart(
        "step-times", "Step time", "step", "seconds per step", [Series("step", steps, seconds)], marks, y_from_zero=True
    )


def _scatter() -> Chart:
    traffic = [abs(365 + n) for n in _noise(7, 900, 20)]
    seconds = _noisy([0.5 + megabytes / 250 for megabytes in traffic], 8, 0.05)
    fit = Series("least squares", [300.0, 430.0], [0.5 + 300 / 250, 0.5 + 430 / 250], "dashed")
    series = [Series("10 steps", traffic, seconds, "points"), fit]
    return Chart("scatter", "Step time against traffic", "MB sent per step and machine", "seconds per step", series)
