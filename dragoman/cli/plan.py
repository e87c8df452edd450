"""Commands about a run that has not started: `check` measures its machines, `plan` predicts without them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.help_text import add_command
from dragoman.cli.output import Json, message_printer, print_json, say, warn
from dragoman.cli.train import Hosts, Overrides, SendData, SshConfig, Workers, place_workers
from dragoman.run.errors import UsageError

if TYPE_CHECKING:
    from dragoman.diagnosis.prediction import Prediction
    from dragoman.diagnosis.strategies import StrategyChoice
    from dragoman.launch.check import CheckResult
    from dragoman.run.config import Settings

DEFAULT_SECONDS = 35.0


def add_plan_commands(app: typer.Typer) -> None:
    """Adds `check` and `plan` to the command line."""
    add_command(
        app,
        check,
        "dragoman check config.toml --hosts a:2,b:2",
        "dragoman check config.toml --workers 2 --steps 50000 --price-per-hour 12.5",
        "dragoman check config.toml --hosts a:2,b:2 --json",
    )
    add_command(
        app,
        plan,
        "dragoman plan --nodes 2 --link 100mbit --steps 50000 --price-per-hour 12",
        "dragoman plan --device A100 --devices-per-node 8 --link 100gbit --plot a.svg",
        "dragoman plan my-plan.toml --json",
        "dragoman plan --list",
    )


def check(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="Settings of the planned run.")],
    overrides: Overrides = None,
    workers: Workers = None,
    hosts: Hosts = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps of the whole run. Default: training.max_steps.")
    ] = None,
    price_per_hour: Annotated[
        float | None,
        typer.Option(metavar="PRICE", min=0, help="Price of all machines together. Default: training.price_per_hour."),
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=5, max=600, help="Time to measure, not counting the start of the workers."),
    ] = DEFAULT_SECONDS,
    send_data: SendData = False,
    ssh_config: SshConfig = None,
    json: Json = False,
) -> None:
    """Measure machines and links before a run, and predict its speed.

    A few real steps show how long a step takes and what limits it. Exit code 0: no problem; 1: a problem was found.
    """
    from dragoman.launch.check import check_machines
    from dragoman.run.config import load_settings

    settings = load_settings(config, overrides or [])
    placement = place_workers(workers, hosts, 1, ssh_config, send_data)
    tell = message_printer(json)
    tell(f"Measuring for up to {seconds:.0f} s …")
    result = check_machines(settings, placement, seconds, warn)
    prediction = _predict(result, settings)
    strategies = _estimate_strategies(result, settings)
    num_steps = steps or settings.training.max_steps
    full_steps = settings.training.batch_growth.full_steps(0, num_steps)
    price = settings.training.price_per_hour if price_per_hour is None else price_per_hour
    if json:
        figures = _figures(result, prediction, num_steps, full_steps, price)
        print_json(figures | (strategies.to_json() if strategies else {}))
    else:
        _print_report(result, prediction, num_steps, full_steps, price, strategies)
    if result.problems or prediction is None:
        raise typer.Exit(1)


def _predict(result: "CheckResult", settings: "Settings") -> "Prediction | None":
    """Predicts from what was measured; adds the problems it finds to those of the hosts."""
    from dragoman.diagnosis.strategies import predict_as_configured

    if result.measured is None or not result.measured.alone_steps:
        return None
    prediction = predict_as_configured(result.measured, settings)
    result.problems += prediction.problems
    if len(result.measured.machines) > 1 and not result.measured.all_reduce:
        result.problems.append(
            "The exchange of gradients was not measured, so the predicted step includes computing only. "
            "Allow more time with --seconds."
        )
    return prediction


def _estimate_strategies(result: "CheckResult", settings: "Settings") -> "StrategyChoice | None":
    """Estimates all ways to synchronise; None on one machine, or where nothing was measured."""
    from dragoman.diagnosis.strategies import compare_strategies

    measured = result.measured
    if measured is None or not measured.alone_steps or len(measured.machine_names) == 1:
        return None
    return compare_strategies(measured, settings)


def _figures(
    result: "CheckResult",
    prediction: "Prediction | None",
    num_steps: int,
    full_steps: float,
    price_per_hour: float | None,
) -> dict[str, Any]:
    figures: dict[str, Any] = {"seconds_per_step": None, "parts": {}, "bottleneck": None, "links": [], "advice": []}
    figures |= {"strategies": [], "chosen": None}
    if prediction is not None:
        hours = {name: seconds * full_steps / 3600 for name, seconds in prediction.interval().items()}
        costs = None if price_per_hour is None else {name: each * price_per_hour for name, each in hours.items()}
        figures |= prediction.to_json() | {"steps": num_steps, "hours": hours, "cost": costs}
    measured = result.measured.to_json() if result.measured else None
    return figures | {"problems": result.problems, "measured": measured}


def _print_report(
    result: "CheckResult",
    prediction: "Prediction | None",
    num_steps: int,
    full_steps: float,
    price_per_hour: float | None,
    strategies: "StrategyChoice | None",
) -> None:
    from dragoman.diagnosis.wording import describe_prediction, describe_run_length

    if prediction is not None:
        for line in describe_prediction(prediction):
            say(line)
        say(describe_run_length(prediction, num_steps, price_per_hour, full_steps))
        for message in prediction.advice:
            say(f"What would help: {message}")
    for line in strategies.lines() if strategies else []:
        say(line)
    for note in result.measured.notes if result.measured else []:
        say(f"Note: {note}")
    for problem in result.problems:
        warn(f"PROBLEM: {problem}")
    if prediction is not None and not result.problems:
        say("No problem found.")


def plan(
    file: Annotated[
        Path | None, typer.Argument(metavar="PLAN.toml", help="File with the keys of the options, which override it.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="A model preset. Default: transformer-base.")] = None,
    software: Annotated[
        str | None,
        typer.Option(help="What trains: pytorch (a well-made PyTorch trainer, the default) or openseq2seq."),
    ] = None,
    precision: Annotated[str | None, typer.Option(help="mixed (fp16, the default), bf16, tf32 or fp32.")] = None,
    batch_tokens: Annotated[
        int | None,
        typer.Option(help="Target tokens of a step over all devices, for any number of them. Default: 32768."),
    ] = None,
    batch_per_device: Annotated[
        int | None, typer.Option(help="Target tokens of a step on each device: the batch grows with the cluster.")
    ] = None,
    accumulate: Annotated[
        int | None,
        typer.Option(help="Batches that a device computes one after the other for each step. Default: 1."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="Device: a name from --list. Default: V100.")] = None,
    devices_per_node: Annotated[int | None, typer.Option(help="Devices in each node. Default: 2.")] = None,
    nodes: Annotated[int | None, typer.Option(help="Number of nodes. Default: 2.")] = None,
    link: Annotated[
        str | None,
        typer.Option(help="Link between nodes: a name from --list or a rate such as 300mbit. Default: 100mbit."),
    ] = None,
    round_trip_ms: Annotated[
        float | None,
        typer.Option(
            metavar="MS", help="Round-trip time between nodes, as ping shows it. Default: the usual one of the link."
        ),
    ] = None,
    inside_link: Annotated[
        str | None, typer.Option(help="Link between devices of a node. Default: the usual one of the device.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of the whole run, to get hours.")] = None,
    price_per_hour: Annotated[
        float | None,
        typer.Option(
            metavar="PRICE", help="Price of the whole planned cluster; other sizes in proportion to their devices."
        ),
    ] = None,
    max_devices: Annotated[int | None, typer.Option(help="Largest cluster of the table.")] = None,
    hardware: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="TOML file with your own devices and links; they are added to --list or replace its entries.",
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also draw the table as a chart: .svg or .png.")
    ] = None,
    list_hardware: Annotated[bool, typer.Option("--list", help="List the known devices, links and software.")] = False,
    json: Json = False,
) -> None:
    """Calculate how long a run takes, without machines to measure.

    Shows seconds per step by part, hours, cost, and what would help.
    """
    from dragoman.diagnosis.hardware import load_hardware
    from dragoman.diagnosis.plan import build_plan, load_plan
    from dragoman.diagnosis.plan_output import hardware_lines, plan_lines, save_chart
    from dragoman.diagnosis.software import load_software, software_names

    facts = load_hardware(hardware)
    if list_hardware:
        known = {name: load_software(name).model_dump() for name in software_names()}
        _show(facts.model_dump() | {"software": known}, hardware_lines(facts), json)
        return
    settings = load_plan(
        file,
        {
            "model": model,
            "software": software,
            "precision": precision,
            "batch_tokens": batch_tokens,
            "batch_per_device": batch_per_device,
            "accumulate": accumulate,
            "device": device,
            "devices_per_node": devices_per_node,
            "nodes": nodes,
            "link": link,
            "round_trip_ms": round_trip_ms,
            "inside_link": inside_link,
            "steps": steps,
            "price_per_hour": price_per_hour,
            "max_devices": max_devices,
        },
    )
    if settings.price_per_hour is not None and settings.steps is None:
        raise UsageError("A price needs the number of steps: give --steps too.")
    result = build_plan(settings, facts)
    if plot is not None:
        save_chart(result, plot)
        warn(f"Written to {plot}.")
    _show(result.to_json(), plan_lines(result), json)


def _show(figures: object, lines: list[str], is_json: bool) -> None:
    if is_json:
        print_json(figures)
    else:
        say("\n".join(lines))
