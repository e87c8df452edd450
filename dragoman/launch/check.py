"""`dragoman check` as its launcher sees it: hosts are called together as for a run, and rehearse. Needs no torch."""

import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dragoman.cluster.environment import CHECK_SECONDS_VARIABLE, MEASUREMENTS_FILE
from dragoman.diagnosis.measurements import Measurements
from dragoman.launch.attempt import Attempt, Wish
from dragoman.launch.call_hosts import Muster, ReadyHost, Wishes, require_room
from dragoman.launch.connection import HostError, Pulse
from dragoman.launch.host_program import CHECK_PREFIX
from dragoman.launch.hosts import Placement
from dragoman.launch.supervision import StopSignals
from dragoman.run.config import Settings
from dragoman.run.errors import UserError
from dragoman.run.files import read_json
from dragoman.run.folder import RunFolder
from dragoman.training.start import create_run

MODULE = "dragoman.training.worker"
Say = Callable[[str], None]


@dataclass
class CheckResult:
    """What could be measured, and what stood in the way."""

    measured: Measurements | None = None
    problems: list[str] = field(default_factory=list)


def check_machines(settings: Settings, placement: Placement, seconds: float, say: Say) -> CheckResult:
    """Rehearses on the hosts that are there; a host that is not, or is lost meanwhile, is a problem beside the rest."""
    with tempfile.TemporaryDirectory(prefix=CHECK_PREFIX) as folder, StopSignals() as signals:
        run = RunFolder(Path(folder))
        create_run(run, settings, placement.num_workers)
        pulse = Pulse()
        muster = Muster(_wishes(run, settings, placement), pulse, _show, say)
        try:
            return _Check(run, settings, placement, muster, signals, say).run(seconds)
        finally:
            muster.close()
            pulse.stop()


def _wishes(run: RunFolder, settings: Settings, placement: Placement) -> Wishes:
    return Wishes(
        run,
        settings.data.prepared.absolute(),
        kept_bytes=0,
        host_timeout=settings.cluster.host_timeout,
        is_resumed=False,
        ssh_config=placement.ssh_config,
        is_data_sent=placement.is_data_sent,
        port=settings.cluster.port or None,
    )


@dataclass
class _Check:
    run_folder: RunFolder
    settings: Settings
    placement: Placement
    muster: Muster
    signals: StopSignals
    say: Say

    def run(self, seconds: float) -> CheckResult:
        hosts, problems = self.muster.call(self.placement.hosts)
        result = CheckResult(problems=list(problems.values()))
        if not hosts:
            return result
        require_room(hosts, self.settings.training.virtual_workers)
        cause = self._rehearse(hosts, seconds)
        if self.signals.num_received:
            raise UserError("The check was interrupted.")
        if cause is not None:
            result.problems.append(cause)
        result.measured = self._collect(hosts)
        return result

    def _rehearse(self, hosts: Sequence[ReadyHost], seconds: float) -> str | None:
        """Why it was cut short; None if it was not."""
        try:
            port = self.settings.cluster.port or hosts[0].connection.ask({"do": "port"}, "port")
        except HostError as error:
            return str(error)
        timeouts = self.settings.cluster.hang_timeout, self.settings.cluster.host_timeout
        attempt = Attempt(self.run_folder, MODULE, hosts, timeouts, {CHECK_SECONDS_VARIABLE: str(seconds)})
        return attempt.follow(port, lambda: Wish.END if self.signals.num_received else Wish.GO_ON).cause

    def _collect(self, hosts: Sequence[ReadyHost]) -> Measurements | None:
        """What was measured, from the first host that still has it; hosts do not keep it."""
        found = None
        for host in hosts:
            if host.shares_run_folder:
                path = self.run_folder.path / MEASUREMENTS_FILE
                found = found or (read_json(path) if path.exists() else None)
            else:
                found = found or self._fetch(host)
        return Measurements.from_json(found) if found else None

    def _fetch(self, host: ReadyHost) -> dict[str, object] | None:
        request = {"do": "take_measurements", "run": str(self.run_folder.path), "name": MEASUREMENTS_FILE}
        try:
            answer: dict[str, object] | None = host.connection.ask(request, "measurements")
        except UserError:  # it is lost: the attempt has said so
            return None
        return answer


def _show(host: str, line: str) -> None:
    """What workers print, which is nothing unless something is wrong."""
    print(f"[{host}] {line}", file=sys.stderr, flush=True)
