"""Groups files by the run that wrote them: never two runs as one, and never one run twice."""

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dragoman.importing.curves.curve_tags import SPLIT_FOLDERS, names_split
from dragoman.importing.curves.table_layout import is_table
from dragoman.importing.files.detection import LogFile, RunFiles, find_files, identify_log
from dragoman.importing.files.same_run import Relation, Traits, begins_at_start, merge, relation_of, traits_of
from dragoman.importing.imported_run import MAX_LISTED, ImportedRun
from dragoman.importing.run_reading import LogPart, count_repeated, read_curves, read_logs, read_states
from dragoman.importing.trainers.huggingface import is_checkpoint_folder
from dragoman.run.decompressors import COMPRESSION_ENDINGS
from dragoman.run.errors import UserError

ABOUT_POINTERS = "it is a pointer of Git LFS and not the file itself, which `git lfs pull` fetches."
KINDS = ("logs", "states", "events", "tables")
"""The kinds of files of a run, the one that tells most first."""
_EXPORTED_NAME = re.compile(r"run-(.{0,200}?)-tag-")
_UNSAFE = re.compile(r"[^\w.-]+")
_MAX_NAMED = 5


@dataclass
class _Part:
    """Files that are certainly of one run: a log, or the events, tables or states of one folder."""

    kind: str
    paths: list[Path]
    folder: Path
    log: LogFile | None = None
    number: int = 0
    """Place among the files that were given."""
    run_name: str = ""
    """Name of the run, where the files hold several runs."""
    view: ImportedRun | None = None

    def __post_init__(self) -> None:
        # Folders are compared: a relative one and an absolute one may be the same.
        self.folder = self.folder.absolute()

    @property
    def trainer(self) -> str | None:
        return self.log.trainer if self.log else None

    def read(self) -> ImportedRun:
        """Reads the part alone, once."""
        if self.view is None:
            self.view = ImportedRun()
            if self.kind == "logs":
                read_logs([LogPart(self.paths[0])], self.trainer, self.view)
            elif self.kind == "states":
                read_states(self.paths, self.view)
            else:
                read_curves(self.kind, self.paths, self.view, self.run_name)
        return self.view


@dataclass
class _Cluster:
    """Parts of one kind that are of one run."""

    parts: list[_Part]
    traits: Traits = field(default_factory=Traits)
    repeated: dict[Path, int] = field(default_factory=dict)
    """For each log, how many of its first lines are in another log too."""
    left_out: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return _shared_folder(part.folder for part in self.parts)

    def add(self, part: _Part, traits: Traits, relation: Relation) -> None:
        """Adds a part of the same run, unless it is a copy."""
        others = " and ".join(str(path) for each in self.parts for path in each.paths[:2])
        if relation is Relation.COPY:
            self.left_out += [f"{path} was left out: {others} holds the same figures." for path in part.paths]
            return
        if relation is Relation.OVERLAP and part.kind == "logs":
            (path,) = part.paths
            self.repeated[path] = max(count_repeated(each.paths[0], path) for each in self.parts)
            self.left_out.append(f"The beginning of {path} was left out: the end of {others} holds the same figures.")
        self.parts.append(part)
        self.traits = merge(self.traits, traits)


@dataclass
class FoundRun:
    """The files of one run."""

    clusters: dict[str, _Cluster]
    """For each kind of files, those of this run."""
    companions: list[Path] = field(default_factory=list)
    """Logs of no known trainer that belong to the run, such as its standard error."""
    left_out: list[str] = field(default_factory=list)
    name: str = ""
    place: Path = Path()
    """The folder of the run, or its main file where the folder holds others too."""

    @property
    def main(self) -> _Cluster | None:
        """The cluster that tells most."""
        return next((self.clusters[kind] for kind in KINDS if kind in self.clusters), None)

    @property
    def paths(self) -> list[Path]:
        """All files of the run."""
        own = [path for cluster in self.clusters.values() for part in cluster.parts for path in part.paths]
        return own + self.companions

    @property
    def folder(self) -> Path:
        """The folder that holds its main files."""
        return self.main.folder if self.main else _shared_folder(path.parent for path in self.companions)

    def read(self, is_explicit: bool = False, is_cut: bool = False) -> ImportedRun:
        """Reads all files of the run; the archive that held them may be cut off."""
        run = ImportedRun(left_out=list(self.left_out), facts={"is_cut": True} if is_cut else {})
        logs = self.clusters.get("logs")
        parts = _in_order(logs.parts) if logs else []
        pieces = [LogPart(part.paths[0], logs.repeated.get(part.paths[0], 0)) for part in parts] if logs else []
        if pieces or self.companions:
            read_logs(pieces + [LogPart(path) for path in self.companions], parts[0].trainer if parts else None, run)
        run.finish()
        for kind in KINDS[1:]:
            if kind in self.clusters:
                self._read_other(kind, run, is_explicit)
        return run

    def _read_other(self, kind: str, run: ImportedRun, is_explicit: bool) -> None:
        parts = self.clusters[kind].parts
        paths = [path for part in parts for path in part.paths]
        try:
            read_states(paths, run) if kind == "states" else read_curves(kind, paths, run, parts[0].run_name)
        except UserError as error:
            # A table in a folder may be about anything.
            if is_explicit or run.is_empty:
                raise
            run.left_out.append(f"Left out: {error}")
        run.finish()

    def describe(self) -> str:
        """Returns a line about the run: name, trainer, steps and files."""
        main = self.main
        run = main.parts[0].read() if main else ImportedRun()
        figures = [point for part in (main.parts if main else []) for point in traits_of(part.read()).figures]
        steps = [step for kind, step in figures if kind == "train"]
        evaluated = [step for kind, step in figures if kind == "evaluation"]
        made = f"evaluations {_range(evaluated)}" if evaluated else "no step"
        made = f"steps {_range(steps)}" if steps else made
        names = [str(path) for path in self.paths]
        more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
        return f"{self.name}: {run.trainer}, {made}, {', '.join(names[:_MAX_NAMED])}{more}"


def _range(steps: list[int]) -> str:
    return f"{min(steps):,} to {max(steps):,}"


def group_runs(paths: Sequence[Path]) -> tuple[list[FoundRun], RunFiles]:
    """Returns the runs that the files and folders hold, and all files by their kind."""
    files = find_files(paths)
    is_explicit = any(path.is_file() for path in paths)
    logs = [identify_log(path) for path in files.logs]
    # The table of a notebook, copied into a text file.
    files.tables += [log.path for log in logs if log.trainer is None and is_table(log.path)]
    logs = [log for log in logs if log.path not in files.tables]
    known = [_Part("logs", [log.path], log.path.parent, log, n) for n, log in enumerate(logs) if log.trainer]
    left_out: list[str] = []
    runs = [FoundRun({"logs": cluster}) for cluster in _cluster_logs(known, is_explicit, left_out)]
    for kind, parts in (
        ("states", _parts_of_states(files)),
        ("events", _parts_of_events(files.events)),
        ("tables", _parts_of_tables(files.tables)),
    ):
        for cluster in _cluster_curves(parts, is_explicit, left_out):
            _attach(kind, cluster, runs)
    others = [log for log in logs if log.trainer is None]
    runs = _add_unknown_logs(others, runs, is_explicit, left_out)
    left_out += [f"{path} was left out: name an archive itself, or unpack it." for path in files.archives]
    left_out += [f"{path} was left out: {ABOUT_POINTERS}" for path in files.pointers]
    _finish(runs, left_out)
    return runs, files


def _finish(runs: list[FoundRun], left_out: list[str]) -> None:
    folders = [run.folder for run in runs]
    for run in runs:
        own = [message for cluster in run.clusters.values() for message in cluster.left_out]
        run.left_out = (own + left_out)[:MAX_LISTED]
        is_alone = folders.count(run.folder) == 1 and not any(
            run.folder in other.parents for other in folders if other != run.folder
        )
        run.place = run.folder if is_alone and len(runs) > 1 else next(iter(run.paths), Path())
        run.name = _name_of(run.place)
        if run.main and (name := _UNSAFE.sub("-", run.main.parts[0].run_name).strip("-")):
            run.name, run.place = name, Path(f"{run.place}#{name}")
    _make_names_unique(runs)


def _make_names_unique(runs: list[FoundRun]) -> None:
    """Adds the folder to names that several runs have, then a number."""
    names = [run.name for run in runs]
    for run in runs:
        if names.count(run.name) > 1:
            run.name = f"{run.place.parent.name}-{run.name}" if run.place.parent.name else run.name
    seen: dict[str, int] = {}
    for run in runs:
        seen[run.name] = seen.get(run.name, 0) + 1
        if seen[run.name] > 1:
            run.name = f"{run.name}-{seen[run.name]}"


def _name_of(path: Path) -> str:
    name = path.name
    for ending in COMPRESSION_ENDINGS:
        name = name.removesuffix(ending)
    return (name.rsplit(".", 1)[0] if "." in name.strip(".") and path.is_file() else name) or "imported"


# Logs


def _cluster_logs(parts: list[_Part], is_explicit: bool, left_out: list[str]) -> list[_Cluster]:
    if len(parts) < 2:
        return [_Cluster([part]) for part in parts]
    traits = {id(part): traits_of(part.read()) for part in parts}
    trained = [part for part in parts if traits[id(part)].has_steps]
    trained.sort(key=lambda part: _rank_of_log(part, traits[id(part)]))
    clusters: list[_Cluster] = []
    for part in trained:
        _add_to_clusters(part, traits[id(part)], clusters, is_explicit)
    for part in parts:
        if not traits[id(part)].has_steps:
            _add_without_steps(part, traits[id(part)], clusters, left_out)
    return clusters


def _rank_of_log(part: _Part, traits: Traits) -> tuple[int, int, bool, int]:
    """Sorts the log that tells most before its copies: a tail may hold every step, but not how the run began."""
    size = sum(path.stat().st_size for path in part.paths)
    return traits.train_steps[0], -len(traits.figures), not traits.is_announced, -size


def _add_to_clusters(part: _Part, traits: Traits, clusters: list[_Cluster], is_explicit: bool) -> None:
    relations = [
        (relation_of(traits, cluster.traits, is_explicit or part.folder == cluster.folder, is_explicit), cluster)
        for cluster in clusters
        if cluster.parts[0].read().trainer == part.read().trainer and cluster.parts[0].run_name == part.run_name
    ]
    for wanted in (Relation.COPY, Relation.OVERLAP, Relation.CONTINUATION):
        for relation, cluster in relations:
            if relation is wanted:
                cluster.add(part, traits, relation)
                return
    clusters.append(_Cluster([part], traits))


def _add_without_steps(part: _Part, traits: Traits, clusters: list[_Cluster], left_out: list[str]) -> None:
    """Adds a log of evaluations, or of a launch that failed, to the only run that it can belong to."""
    same = [cluster for cluster in clusters if cluster.parts[0].trainer == part.trainer]
    if copied := [each for each in same if traits.figures and relation_of(traits, each.traits, True) is Relation.COPY]:
        copied[0].add(part, traits, Relation.COPY)
        return
    near = [cluster for cluster in same if cluster.folder == part.folder] or same
    if len(near) > 1:
        near = [cluster for cluster in near if _stem(cluster.parts[0].paths[0]) == _stem(part.paths[0])] or near
    if len(near) == 1:
        near[0].add(part, traits, Relation.CONTINUATION)
    elif near:
        left_out.append(f"{part.paths[0]} was left out: it has no training step, and several runs are beside it.")
    else:
        clusters.append(_Cluster([part], traits))


def _stem(path: Path) -> str:
    """Returns the beginning of a name, which the files of a run share: a of a.train.log and a.valid.log."""
    return path.name.split(".", 1)[0]


def _in_order(parts: list[_Part]) -> list[_Part]:
    """Sorts by first date, else by first step; keeps the given order unless one of them is known for every log."""
    if len(parts) < 2:
        return parts
    if all(part.log and part.log.first_date for part in parts):
        return sorted(parts, key=lambda part: (part.log and part.log.first_date) or ())
    steps = {id(part): traits_of(part.read()).train_steps for part in parts}
    has_all_steps = all(steps.values())
    return sorted(parts, key=lambda part: steps[id(part)][0] if has_all_steps else part.number)


def _add_unknown_logs(
    logs: list[LogFile], runs: list[FoundRun], is_explicit: bool, left_out: list[str]
) -> list[FoundRun]:
    """Adds texts of no known trainer: those the user named, the standard error of a run; all if there is no run."""
    if not runs:
        wanted = [log.path for log in logs if is_explicit or not log.is_empty]
        return [FoundRun({}, wanted)] if wanted else []
    unknown = []
    for log in logs:
        near = [run for run in runs if "logs" in run.clusters and _is_companion(log.path, run)]
        if is_explicit and len(runs) == 1:
            near = runs
        if len(near) == 1:
            near[0].companions.append(log.path)
        elif not log.is_empty:
            unknown.append(str(log.path))
    if unknown:
        more = f" and {len(unknown) - _MAX_NAMED} more" if len(unknown) > _MAX_NAMED else ""
        left_out.append(f"No log of a trainer that is known, left out: {', '.join(unknown[:_MAX_NAMED])}{more}.")
    return runs


def _is_companion(path: Path, run: FoundRun) -> bool:
    """Whether a text is the standard error beside the log of a run."""
    is_error = path.name.endswith(".err") or "stderr" in path.name
    logs = [part.paths[0] for part in run.clusters["logs"].parts]
    return is_error and any(
        log.parent == path.parent and (_stem(log) == _stem(path) or "stdout" in log.name) for log in logs
    )


# Curves and states


def _cluster_curves(parts: list[_Part], is_explicit: bool, left_out: list[str]) -> list[_Cluster]:
    if len(parts) < 2:
        return [_Cluster([part]) for part in parts]
    readable = []
    for part in parts:
        try:
            readable.append((part, traits_of(part.read())))
        except UserError as error:
            if is_explicit:
                raise
            left_out.append(f"Left out: {error}")
    # Of files with the same figures, those that say more come first: the others are left out.
    readable.sort(
        key=lambda each: (
            not each[1].has_steps,
            each[1].train_steps[:1],
            -len(each[1].figures),
            -len(each[0].read().facts),
        )
    )
    clusters: list[_Cluster] = []
    for part, traits in readable:
        # Nobody cuts event files: those that begin midway continue a run.
        traits.is_resumed = part.kind == "events" and traits.has_steps and not begins_at_start(traits.train_steps)
        near = [cluster for cluster in clusters if part.kind != "tables" or cluster.folder == part.folder]
        before = len(near)
        _add_to_clusters(part, traits, near, is_explicit=True)
        clusters += near[before:]
    return clusters


def _parts_of_states(files: RunFiles) -> list[_Part]:
    """Groups by output folder: each checkpoint in it has a trainer_state.json."""
    return _by_folder("states", files.states + files.results, _output_folder)


def _output_folder(path: Path) -> Path:
    folder = path.parent
    return folder.parent if is_checkpoint_folder(folder) else folder


def _parts_of_events(paths: list[Path]) -> list[_Part]:
    """Groups by folder; the curves of one split, and all below a folder with events, belong to it."""
    parts = _by_folder("events", paths, lambda path: _without_split(path.parent))
    parts.sort(key=lambda part: len(part.folder.parts))
    tops: list[_Part] = []
    for part in parts:
        above = next((top for top in tops if top.folder in part.folder.parents), None)
        if above is None:
            tops.append(part)
        else:
            above.paths += part.paths
    return tops


def _without_split(folder: Path) -> Path:
    return folder.parent if names_split(folder.name) else folder


def _parts_of_tables(paths: list[Path]) -> list[_Part]:
    """Groups tables that were exported from one run; any other table is a part of its own."""
    parts: dict[tuple[Path, str, str], _Part] = {}
    for path in paths:
        for run_name in _runs_in_table(path):
            exported = _EXPORTED_NAME.match(path.name)
            run = exported[1].strip("._") if exported else path.name
            run = "" if run in SPLIT_FOLDERS or run_name else run
            part = parts.setdefault((path.parent, run, run_name), _Part("tables", [], path.parent, run_name=run_name))
            part.paths.append(path)
    return list(parts.values())


def _runs_in_table(path: Path) -> list[str]:
    """Returns the names of the runs in a table of several; one empty name for any other."""
    from dragoman.importing.curves.csv_tables import runs_in

    try:
        names = runs_in(path)
    except UserError:  # whoever reads it will say why
        names = []
    return names if len(names) > 1 else [""]


def _by_folder(kind: str, paths: list[Path], folder_of: Callable[[Path], Path]) -> list[_Part]:
    parts: dict[Path, _Part] = {}
    for path in paths:
        folder = folder_of(path)
        parts.setdefault(folder, _Part(kind, [], folder)).paths.append(path)
    return list(parts.values())


def _attach(kind: str, cluster: _Cluster, runs: list[FoundRun]) -> None:
    """Adds files to the run beside which they are; files that are beside none or several are a run of their own."""
    free = [run for run in runs if kind not in run.clusters]
    inside = [run for run in free if _is_inside(cluster.folder, run.folder) or _is_inside(run.folder, cluster.folder)]
    near = inside if inside or len(runs) > 1 else free
    if near:
        depths = [len(_shared_folder([run.folder, cluster.folder]).parts) for run in near]
        near = [run for run, depth in zip(near, depths, strict=True) if depth == max(depths)]
    if len(near) == 1:
        near[0].clusters[kind] = cluster
    else:
        runs.append(FoundRun({kind: cluster}))


def _is_inside(folder: Path, other: Path) -> bool:
    return folder == other or other in folder.parents


def _shared_folder(folders: Iterable[Path]) -> Path:
    return Path(os.path.commonpath([str(folder.absolute()) for folder in folders]))
