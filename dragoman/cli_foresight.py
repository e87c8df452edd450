"""Commands that look ahead: what a run would take, before anybody pays for it."""

from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli_output import Json, print_json, say, warn
from dragoman.run.errors import UsageError


def add_foresight_commands(app: typer.Typer) -> None:
    """Adds these commands to the command line."""
    app.command(epilog=_PLAN_EXAMPLES)(plan)


_PLAN_EXAMPLES = """Examples: dragoman plan --nodes 2 --link 100mbit --steps 50000 --price-per-hour 12 |
dragoman plan --device A100 --devices-per-node 8 --inside-link nvlink3 --link 100gbit --max-devices 4096 --plot a.svg |
dragoman plan my-plan.toml --json | dragoman plan --list"""


def plan(
    file: Annotated[
        Path | None, typer.Argument(metavar="[PLAN.toml]", help="The same keys as the options; options win.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="A model preset. Default: transformer-base.")] = None,
    precision: Annotated[str | None, typer.Option(help="mixed (fp16, the default), bf16 or fp32.")] = None,
    batch_tokens: Annotated[
        int | None, typer.Option(help="Target tokens a step over all devices, at any size. Default: 32768.")
    ] = None,
    batch_per_device: Annotated[
        int | None, typer.Option(help="Target tokens a step on each device: the batch grows with the cluster.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="A name from --list. Default: V100.")] = None,
    devices_per_node: Annotated[int | None, typer.Option(help="Default: 2.")] = None,
    nodes: Annotated[int | None, typer.Option(help="Default: 2.")] = None,
    link: Annotated[
        str | None, typer.Option(help="Between nodes: a name from --list or a rate such as 300mbit. Default: 100mbit.")
    ] = None,
    inside_link: Annotated[str | None, typer.Option(help="Between devices of a node. Default: pcie3.")] = None,
    gradient_bytes: Annotated[int | None, typer.Option(help="4 sends fp32 (default), 2 half precision.")] = None,
    steps: Annotated[int | None, typer.Option(help="Of the whole run: gives hours.")] = None,
    price_per_hour: Annotated[
        float | None, typer.Option(help="Of the whole cluster described here; other sizes in proportion to devices.")
    ] = None,
    max_devices: Annotated[int | None, typer.Option(help="The largest cluster of the table.")] = None,
    hardware: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A TOML with facts that add to or override the shipped ones.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Also draw the table: .svg or .png.")] = None,
    list_hardware: Annotated[bool, typer.Option("--list", help="List the known devices and links.")] = False,
    json: Json = False,
) -> None:
    """Predict on paper what a run takes on a cluster: seconds a step by cause, hours, cost, and what would help."""
    from dragoman.diagnosis.hardware import hardware_lines, load_hardware
    from dragoman.diagnosis.plan import build_plan
    from dragoman.diagnosis.plan_chart import plan_lines, save_chart
    from dragoman.diagnosis.scenario import load_plan

    facts = load_hardware(hardware)
    if list_hardware:
        _show(facts.model_dump(), hardware_lines(facts), json)
        return
    settings = load_plan(
        file,
        {
            "model": model,
            "precision": precision,
            "batch_tokens": batch_tokens,
            "batch_per_device": batch_per_device,
            "device": device,
            "devices_per_node": devices_per_node,
            "nodes": nodes,
            "link": link,
            "inside_link": inside_link,
            "gradient_bytes": gradient_bytes,
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
