"""`dragoman check`: what a run would take on the machines it is meant for, measured on them before anybody pays."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli_output import Json, print_json, say, speaker, warn
from dragoman.cli_train import Hosts, Overrides, SendData, SshConfig, Workers, place_workers

if TYPE_CHECKING:
    from dragoman.diagnosis.prediction import Prediction
    from dragoman.training.checking import CheckResult

_EXAMPLES = """Examples: dragoman check config.toml --hosts a:2,b:2 |
dragoman check config.toml --workers 2 --steps 50000 --price-per-hour 12.5 |
dragoman check config.toml --hosts a:2,b:2 --json"""
DEFAULT_SECONDS = 35.0


def add_check_command(app: typer.Typer) -> None:
    """Adds this command to the command line."""
    app.command(epilog=_EXAMPLES)(check)


def check(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="Settings of the run to come.")],
    overrides: Overrides = None,
    workers: Workers = None,
    hosts: Hosts = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Of the whole run. Default: training.max_steps of the config.")
    ] = None,
    price_per_hour: Annotated[
        float | None, typer.Option(min=0, help="Of all machines together. Default: training.price_per_hour.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=5, max=600, help="How long to measure; starting takes some seconds more.")
    ] = DEFAULT_SECONDS,
    send_data: SendData = False,
    ssh_config: SshConfig = None,
    json: Json = False,
) -> None:
    """Measure machines and links with a few real steps, and say how long a step will take and what holds it back.

    Exit code 0: fine; 1: a problem was found.
    """
    from dragoman.run.config import load_settings
    from dragoman.training.checking import check_machines

    settings = load_settings(config, overrides or [])
    placement = place_workers(workers, hosts, 1, ssh_config, send_data)
    tell = speaker(json)
    tell(f"Measuring for up to {seconds:.0f} s …")
    result = check_machines(settings, placement, seconds, warn)
    prediction = _predict(result)
    num_steps = steps or settings.training.max_steps
    price = settings.training.price_per_hour if price_per_hour is None else price_per_hour
    if json:
        print_json(_figures(result, prediction, num_steps, price))
    else:
        _print_report(result, prediction, num_steps, price)
    if result.problems or prediction is None:
        raise typer.Exit(1)


def _predict(result: "CheckResult") -> "Prediction | None":
    """From what was measured; problems it shows join those of the hosts."""
    from dragoman.diagnosis.advice import predict_and_advise

    if result.measured is None or not result.measured.alone_steps:
        return None
    prediction = predict_and_advise(result.measured)
    result.problems += prediction.problems
    if len(result.measured.machines) > 1 and not result.measured.all_reduce:
        result.problems.append("The exchange of gradients was not measured: the step time is that of computing alone.")
    return prediction


def _figures(
    result: "CheckResult", prediction: "Prediction | None", num_steps: int, price_per_hour: float | None
) -> dict[str, Any]:
    figures: dict[str, Any] = {"seconds_per_step": None, "parts": {}, "bottleneck": None, "links": [], "advice": []}
    if prediction is not None:
        hours = {name: seconds * num_steps / 3600 for name, seconds in prediction.interval().items()}
        costs = None if price_per_hour is None else {name: each * price_per_hour for name, each in hours.items()}
        figures |= prediction.to_json() | {"steps": num_steps, "hours": hours, "cost": costs}
    measured = result.measured.to_json() if result.measured else None
    return figures | {"problems": result.problems, "measured": measured}


def _print_report(
    result: "CheckResult", prediction: "Prediction | None", num_steps: int, price_per_hour: float | None
) -> None:
    from dragoman.diagnosis.wording import describe_prediction, describe_run_length

    if prediction is not None:
        for line in describe_prediction(prediction):
            say(line)
        say(describe_run_length(prediction, num_steps, price_per_hour))
        for sentence in prediction.advice:
            say(f"What would help: {sentence}")
    for note in result.measured.notes if result.measured else []:
        say(f"Note: {note}")
    for problem in result.problems:
        warn(f"PROBLEM: {problem}")
    if prediction is not None and not result.problems:
        say("No problem found.")
