"""Hosts that left a run: looked for in the background, and known to be back when they can be used again."""

import threading
import time
from dataclasses import dataclass, field

from dragoman.cluster.launch.connection import Pulse
from dragoman.cluster.launch.hosts import Host
from dragoman.cluster.launch.muster import Muster, Wishes

LOOK_SECONDS = 5.0
FAILED_RETURN_SECONDS = 60.0
"""A host that came back and could not be used is left alone for so long, and longer each time: taking it back costs
the others a restart."""
SETTLED_SECONDS = 600.0
"""One that was lost again after so long had really come back."""


@dataclass
class _Absence:
    reason: str
    num_failed_returns: int = 0
    look_after: float = 0.0
    is_back: bool = False
    returned_at: float = 0.0


@dataclass
class LostHosts:
    """Who is missing, and who could come back."""

    wishes: Wishes
    _absent: dict[Host, _Absence] = field(default_factory=dict)
    _returned: dict[Host, _Absence] = field(default_factory=dict)
    _is_over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        threading.Thread(target=self._look, daemon=True).start()

    def __contains__(self, host: Host) -> bool:
        return host in self._absent

    def add(self, host: Host, reason: str) -> None:
        """From now on a host is missing; one that had just come back is trusted less."""
        before = self._returned.pop(host, None)
        is_vain = before is not None and time.monotonic() - before.returned_at < SETTLED_SECONDS
        num_failed = before.num_failed_returns + 1 if before and is_vain else 0
        self._absent[host] = _Absence(reason, num_failed, time.monotonic() + num_failed * FAILED_RETURN_SECONDS)

    @property
    def is_somebody_back(self) -> bool:
        """Whether another attempt would have more hosts."""
        return any(absence.is_back for absence in list(self._absent.values()))

    def welcome_back(self) -> None:
        """Those that are back are no longer missing."""
        for host, absence in list(self._absent.items()):
            if absence.is_back:
                absence.returned_at = time.monotonic()
                self._returned[host] = self._absent.pop(host)

    def close(self) -> None:
        """Looks no more."""
        self._is_over.set()

    def _look(self) -> None:
        """Tries each missing host from time to time: reached over ssh, and fit for the run."""
        while not self._is_over.wait(LOOK_SECONDS):
            for host, absence in list(self._absent.items()):
                if not absence.is_back and time.monotonic() > absence.look_after and not self._is_over.is_set():
                    absence.is_back = self._can_be_used(host)

    def _can_be_used(self, host: Host) -> bool:
        # Connections of its own, quiet ones: errors of ssh are what is expected here.
        pulse = Pulse()
        muster = Muster(self.wishes, pulse, lambda _host, _line: None, lambda _text: None)
        try:
            found, _ = muster.call([host])
        finally:
            muster.close()
            pulse.stop()
        return bool(found)
