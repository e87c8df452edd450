"""Pages that a browser keeps up to date: a strip that is cheap to make, and below it what takes longer to build."""

import hashlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Any

from markupsafe import Markup

from dragoman.report.rendering import LivePart, make_environment, render_frame
from dragoman.run.errors import UserError

Signature = tuple[object, ...]
"""What a page was made from, e.g. times and sizes of files: a page with the same signature is the same."""
MAX_BUILDS = 4
"""Pages that are built at the same time; each in its own thread, so that a slow one delays no other."""
LARGEST_SHARE = 0.1
"""Largest share of the time that is spent on building one page: the run needs the cores."""
_LEAST_SECONDS_BETWEEN = 1.0
_FIRST_WAIT_SECONDS = 3.0
"""How long a request waits for a page that was never built; then it is shown as being read."""
_PLACE_OF_STRIP = Markup("<aside id='live'></aside>")
"""Stands in a page until it is sent: the strip changes more often than the page."""
ASK_AGAIN_SECONDS = 2
ASK_AFTER_END_SECONDS = 30


@dataclass(frozen=True)
class PageText:
    """A complete page without its strip, and what tells it from an older or newer one."""

    html: str
    version: str

    @classmethod
    def of(cls, html: str) -> "PageText":
        """Computes the version, which the page's script compares with that of the strip."""
        return cls(html, hashlib.sha256(html.encode("utf-8", "replace")).hexdigest()[:16])

    def with_strip(self, strip: "Strip") -> str:
        """Returns the page as it is sent."""
        return self.html.replace(_PLACE_OF_STRIP, replace(strip, version=self.version).render(), 1)


@dataclass(frozen=True)
class MachineRow:
    """A machine of the run, as the strip shows it."""

    name: str
    cells: Sequence[str]


@dataclass(frozen=True)
class Strip:
    """What stands above a live page."""

    items: Sequence[str]
    """The state of the run and its most important figures, in a few words each."""
    has_ended: bool = False
    ask_again_seconds: int = ASK_AGAIN_SECONDS
    """When the page asks for a newer strip."""
    note: str = ""
    """Why the page below may be old."""
    version: str = ""
    machines: Sequence[MachineRow] = ()
    machine_columns: Sequence[str] = field(default=("machine",))
    links: Sequence[tuple[str, str]] = ()
    """Addresses and names of other pages."""

    def render(self) -> Markup:
        """Renders the element."""
        template = make_environment("dragoman.live").get_template("strip.html.j2")
        return Markup(template.render(strip=self))  # noqa: S704 the template escapes


class LivePage(ABC):
    """A page that a browser keeps up to date."""

    @abstractmethod
    def strip(self) -> Strip:
        """Returns the state at this moment; cheap, and asked for every two seconds."""

    @abstractmethod
    def page(self) -> PageText:
        """Returns the page as it was built last."""


class PageBuilder:
    """Builds a page in the background when what it shows has changed, and keeps the last good one."""

    def __init__(self, build: Callable[[], str], slots: threading.Semaphore) -> None:
        """`slots` limits how many pages are built at the same time."""
        self._build, self._slots = build, slots
        self._lock, self._is_built = threading.Lock(), threading.Event()
        self._is_building = False
        self._tried: tuple[str, Signature] | None = None
        self._next = 0.0
        self._built_at = ""
        self._problem = ""
        self._page: PageText | None = None

    @property
    def version(self) -> str:
        """The version of the last good page; empty where there is none."""
        return self._page.version if self._page else ""

    @property
    def note(self) -> str:
        """What is wrong with the newest files; empty where nothing is."""
        if not self._problem:
            return ""
        return (
            f"{self._problem} This page shows the run as it was at {self._built_at}." if self._page else self._problem
        )

    def renew(self, state: str, signature: Signature) -> None:
        """Starts to build if the files have changed and it is time, and at once when the state has changed."""
        with self._lock:
            is_new_state = self._tried is None or self._tried[0] != state
            is_due = time.monotonic() >= self._next or (is_new_state and self._page is not None)
            if self._is_building or self._tried == (state, signature) or not is_due:
                return
            if not self._slots.acquire(blocking=False):
                return
            self._is_building, self._tried = True, (state, signature)
        threading.Thread(target=self._run, name="page", daemon=True).start()

    def wait(self) -> PageText | None:
        """Returns the last good page; waits a moment where there has never been one."""
        if self._page is None:
            self._is_built.wait(_FIRST_WAIT_SECONDS)
        return self._page

    def _run(self) -> None:
        begin = time.monotonic()
        try:
            page, self._problem = PageText.of(self._build()), ""
            self._page, self._built_at = page, time.strftime("%H:%M:%S")
        except Exception as error:
            # A file that is being written, or a damaged run, may fail in any way; the last good page is still useful.
            is_plain = isinstance(error, UserError)
            self._problem = str(error) if is_plain else f"The newest figures cannot be read ({type(error).__name__})."
            self._tried = None
        end = time.monotonic()
        with self._lock:
            self._is_building = False
            self._next = end + max(_LEAST_SECONDS_BETWEEN, (end - begin) / LARGEST_SHARE)
        self._slots.release()
        self._is_built.set()


def live_part() -> LivePart:
    """Returns the place of the strip, and the script of a live page."""
    return LivePart(_PLACE_OF_STRIP, live_script())


@cache
def live_script() -> str:
    """Returns the script that asks for newer figures."""
    return files("dragoman.live").joinpath("live.js").read_text(encoding="utf-8")


def render_own_page(template: str, title: str, **values: Any) -> PageText:
    """Renders one of this folder's templates as a live page."""
    body = make_environment("dragoman.live").get_template(template).render(title=title, **values)
    return PageText.of(render_frame(title, Markup(body), live=live_part()))  # noqa: S704 the template escapes
