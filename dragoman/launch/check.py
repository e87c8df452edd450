"""Launches `dragoman check`: calls the hosts as for a run and lets their workers measure. Does not import torch."""

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dragoman.cluster.environment import CHECK_SECONDS_VARIABLE, MEASUREMENTS_FILE
from dragoman.diagnosis.prediction import Measurements
from dragoman.launch.attempt import Attempt, Order
from dragoman.launch.connection import StopRequestedError
from dragoman.launch.host_connections import HostConnections, ReadyHost
from dragoman.launch.host_program import CHECK_PREFIX
from dragoman.launch.hosts import LaunchPlan, Placement
from dragoman.launch.supervision import StopSignals
from dragoman.launch.worker_count import place_on_cores
from dragoman.run.config import Settings
from dragoman.run.errors import UserError
from dragoman.run.files import read_json
from dragoman.run.folder import RunFolder
from dragoman.training.run_setup import create_run

MODULE = "dragoman.training.worker"
Say = Callable[[str], None]


@dataclass
class CheckResult:
    """The measurements, and the problems that prevented some or all of them."""

    measured: Measurements | None = None
    problems: list[str] = field(default_factory=list)


def check_machines(settings: Settings, placement: Placement, seconds: float, say: Say) -> CheckResult:
    """Measures on the hosts that are up; a host that is down, or is lost during the check, is reported as a problem."""
    placement, choice = place_on_cores(placement, settings)
    if choice:
        say(choice)
    with tempfile.TemporaryDirectory(prefix=CHECK_PREFIX) as folder, StopSignals() as signals:
        run = RunFolder(Path(folder))
        create_run(run, settings, placement.num_workers, not placement.is_only_this_machine)
        plan = LaunchPlan.from_settings(run, settings, placement, MODULE)
        with HostConnections(plan, _show, say, lambda: signals.num_received > 0) as connections:
            try:
                hosts, problems = connections.call(placement.hosts)
            except StopRequestedError:
                raise UserError("The check was interrupted.") from None
            result = CheckResult(problems=list(problems.values()))
            if not hosts:
                return result
            cause = _measure(plan, hosts, seconds, signals)
            if signals.num_received:
                raise UserError("The check was interrupted.")
            if cause is not None:
                result.problems.append(cause)
            result.measured = _collect(run, hosts)
            return result


def _measure(plan: LaunchPlan, hosts: Sequence[ReadyHost], seconds: float, signals: StopSignals) -> str | None:
    """Runs the workers; returns the problem that ended them early, if any."""
    attempt = Attempt(plan, hosts, {CHECK_SECONDS_VARIABLE: str(seconds)})
    return attempt.follow(lambda: Order.KILL if signals.num_received else Order.CONTINUE).cause


def _collect(run: RunFolder, hosts: Sequence[ReadyHost]) -> Measurements | None:
    """Returns the measurements of the first host that has them, and removes those that hosts keep."""
    answers = [_fetch(run, host) for host in hosts]  # from all hosts, since each removes what it has
    found = next(filter(None, answers), None)
    return Measurements.from_json(found) if found else None


def _fetch(run: RunFolder, host: ReadyHost) -> dict[str, object] | None:
    if host.shares_run_folder:
        path = run.path / MEASUREMENTS_FILE
        return read_json(path) if path.exists() else None
    request = {"do": "take_measurements", "run": str(run.path), "name": MEASUREMENTS_FILE}
    try:
        answer: dict[str, object] | None = host.connection.ask(request, "measurements")
    except UserError:  # the host is lost, and the attempt has reported it
        return None
    return answer


def _show(host: str, line: str) -> None:
    """Prints a line of a worker, which prints only if something is wrong."""
    print(f"[{host}] {line}", file=sys.stderr, flush=True)
