"""Commands `report` and `import`: the report of a run, the comparison of several, runs of other trainers."""

import glob
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.help_text import add_command
from dragoman.cli.output import Json, print_json, say, warn
from dragoman.cli.train import unused_run_dir
from dragoman.run.errors import UsageError, UserError
from dragoman.run.folder import RunFolder

if TYPE_CHECKING:
    from dragoman.importing.files.found_runs import FoundRun
    from dragoman.importing.importer import FoundRuns
    from dragoman.report.content import Comparison, Report
    from dragoman.report.evidence import StatedFacts

PACKED = (".gz", ".xz", ".bz2", ".zst", ".zip", ".tar", ".tgz")
MAX_NAMED = 5
MAX_COMPARED = 20
"""Largest number of runs on one page."""

Sources = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN",
        help="A run folder; the log, logs or folder of a run by another trainer; or several runs to compare.",
    ),
]
RunDir = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Run folder for an imported run. Default: runs/NAME.")
]


def add_report_commands(app: typer.Typer) -> None:
    """Adds these commands to the command line."""
    add_command(
        app,
        report,
        "dragoman report runs/demo --open",
        "dragoman report runs/a runs/b",
        "dragoman report nohup.out.gz --nodes 2 --gpus-per-node 2 --gpu V100 --link 1000Mbit",
    )
    add_command(
        app, import_logs, "dragoman import nohup.out", "dragoman import logs/ --run-dir runs/theirs", name="import"
    )


def report(
    sources: Sources,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FOLDER", help="Folder for the report. Default: the run folder."),
    ] = None,
    run_dir: RunDir = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Number of machines, if the log does not say.")] = None,
    gpus_per_node: Annotated[int | None, typer.Option(min=1, help="GPUs per machine.")] = None,
    gpu: Annotated[str | None, typer.Option(help="GPU model, e.g. V100; `dragoman plan --list` shows all.")] = None,
    link: Annotated[
        str | None, typer.Option(metavar="RATE", help="Network between the machines, e.g. 1000Mbit.")
    ] = None,
    price_per_hour: Annotated[
        float | None, typer.Option(metavar="PRICE", min=0, help="Price per hour of all machines.")
    ] = None,
    parameters: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of trainable parameters, if the log does not say.")
    ] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Treat each log as a run of its own.")] = False,
    json: Json = False,
) -> None:
    """Answer eleven questions about a run, on a page and as text.

    Is it trained? Overfitting? Network-bound? What did it cost? What would more steps bring? And more.

    Reads run folders of dragoman; logs of OpenSeq2Seq, fairseq, Marian, OpenNMT-py, Eole, JoeyNMT, Sockeye and the HF
    Trainer (trainer_state.json); TensorBoard folders; and CSV tables. They may be compressed or in a zip or tar.
    Several runs among them are compared; files of one run are read as one.
    """
    from dragoman.report.compose import write_report
    from dragoman.report.evidence import StatedFacts

    known = StatedFacts(nodes, gpus_per_node, gpu, link, price_per_hour, parameters)
    _check_known(known)
    groups = _group(sources, compare)
    if run_dir and len(groups) > 1:
        raise UsageError("--run-dir works with one run only; several runs are imported into a folder each.")
    runs = [run for group in groups for run in _as_runs(group, run_dir)]
    if len(runs) > MAX_COMPARED:
        raise UsageError(f"These are {len(runs)} runs: at most {MAX_COMPARED} can be compared. Name some of them.")
    found = _build(runs, known)
    folder = output or (runs[0].path if len(runs) == 1 else unused_run_dir("comparison"))
    files = write_report(found, folder)
    if json:
        print_json(found.to_json() | {"files": {ending: str(path) for ending, path in files.items()}})
    else:
        _print_report(found, files["html"])
    if open_page:
        import webbrowser

        if not webbrowser.open(files["html"].resolve().as_uri()):
            warn(f"No browser was found: open {files['html']} yourself.")


def import_logs(sources: Sources, run_dir: RunDir = None, json: Json = False) -> None:
    """Turn the log of another trainer into a run folder.

    The commands status, verdict and report then work on it. A folder with several runs becomes several run folders.
    """
    runs = _as_runs(sources, run_dir, must_import=True)
    figures = [_figures_of(run) for run in runs]
    if json:
        print_json(figures[0] if len(figures) == 1 else {"runs": figures})
        return
    for each in figures:
        say(
            f"{each['trainer']}: {_count(each['train_records'], 'logged step')} and "
            f"{_count(each['evaluations'], 'evaluation')} up to step {each['steps']['last'] or 0:,}, in {each['run']}"
        )


def _count(number: int, name: str) -> str:
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def _figures_of(run: RunFolder) -> dict[str, Any]:
    from dragoman.report.evidence import read_evidence

    evidence = read_evidence(run)
    return {
        "run": str(run.path),
        "trainer": evidence.trainer,
        "parameters": evidence.parameters,
        "steps": {"first": evidence.first_step, "last": evidence.last_step},
        "train_records": len(evidence.train),
        "evaluations": len(evidence.evaluations),
        "failures": [failure.values() for failure in evidence.imported.failures] if evidence.imported else [],
    }


def _check_known(known: "StatedFacts") -> None:
    """Refuses an unknown link before anything is read; an unknown GPU is only mentioned."""
    if known.gpu or known.link:
        from dragoman.diagnosis.hardware import load_hardware
        from dragoman.diagnosis.network_estimate import find_device

        hardware = load_hardware()
        if known.link:
            hardware.link(known.link)
        if known.gpu and find_device(known.gpu) is None:
            try:
                hardware.device(known.gpu)
            except UserError as error:
                warn(f"{error} The report goes on without figures of this GPU.")


def _group(sources: Sequence[Path], is_each_its_own: bool) -> list[list[Path]]:
    """Groups paths that may be of one run: files together unless --compare is given; every folder on its own."""
    if is_each_its_own or any(path.is_dir() or _own_run(path) for path in sources):
        return [[path] for path in sources]
    return [list(sources)]


def _as_runs(paths: Sequence[Path], run_dir: Path | None, must_import: bool = False) -> list[RunFolder]:
    """Returns the named run folder, or imports the runs of other trainers into one folder each."""
    if len(paths) == 1 and (run := _own_run(paths[0])) is not None:
        if must_import:
            raise UsageError(f"{run.path} is already a run folder: use it directly with report.")
        return [run]
    from dragoman.importing.importer import find_runs, several_runs

    with find_runs(paths) as found:
        if len(found.runs) == 1:
            return [_import(found, found.runs[0], run_dir, set())]
        if run_dir or len(found.runs) > MAX_COMPARED:
            raise UsageError(several_runs(found))
        warn("\n  ".join([f"{len(found.runs)} runs were found, each on its own:", *found.describe()]))
        said: set[str] = set()
        return [_import(found, each, None, said) for each in found.runs]


def _import(found: "FoundRuns", run: "FoundRun", run_dir: Path | None, said: set[str]) -> RunFolder:
    """Imports a run; what was left out beside several runs is said once."""
    folder = RunFolder(run_dir) if run_dir else _place_for(found, run)
    for message in found.import_into(run, folder).left_out:
        if message not in said:
            warn(message)
            said.add(message)
    return folder


def _own_run(path: Path) -> RunFolder | None:
    """Finds the run folder that a path names: itself, or its log or metrics file; None for anything else."""
    run = RunFolder(path)
    if run.exists:
        return run
    around = RunFolder(path.parent)
    if path in (around.log, around.metrics) and around.exists:
        return around
    inside = [each for each in sorted(path.iterdir()) if RunFolder(each).exists] if path.is_dir() else []
    if inside:
        names = ", ".join(str(each) for each in inside[:MAX_NAMED])
        raise UsageError(f"{path} is a folder of runs: name one run, or several to compare ({names}).")
    return None


def _place_for(found: "FoundRuns", run: "FoundRun") -> RunFolder:
    """Returns runs/NAME; an earlier import of the same log is replaced, any other folder is left alone."""
    name = run.name if len(found.runs) > 1 else _name_of(found.asked_for[0])
    earlier = sorted(Path("runs").glob(f"{glob.escape(name)}*"))
    paths = found.identity_of(run)
    again = next((path for path in earlier if _is_import_of(RunFolder(path), paths)), None)
    return RunFolder(again or unused_run_dir(name))


def _name_of(path: Path) -> str:
    name = path.resolve().name
    for ending in PACKED:
        name = name.removesuffix(ending)
    return (name.rsplit(".", 1)[0] if "." in name.strip(".") and path.is_file() else name) or "imported"


def _is_import_of(run: RunFolder, paths: Sequence[Path]) -> bool:
    from dragoman.report.run_tables import read_imported

    imported = read_imported(run)
    return imported is not None and imported.asked_for == [str(path.resolve()) for path in paths]


def _build(runs: Sequence[RunFolder], known: "StatedFacts") -> "Report | Comparison":
    from dragoman.report.evidence import read_evidence
    from dragoman.report.findings import Findings

    findings = [Findings(read_evidence(run, known)) for run in runs]
    if len(findings) == 1:
        from dragoman.report.compose import report_findings

        return report_findings(findings[0])
    if len({run.path.resolve() for run in runs}) < len(runs):
        raise UsageError("The same run was given twice.")
    from dragoman.report.comparison import compare_runs

    return compare_runs(findings)


def _print_report(found: "Report | Comparison", page: Path) -> None:
    from dragoman.report.content import Report

    say(found.summary)
    for warning in found.warnings:
        say(f"Warning: {warning}")
    if isinstance(found, Report):
        say("")
        for number, answer in enumerate(found.answers, 1):
            say(f"{number:>2}. {answer.question} {answer.answer}")
    say(f"\nFull report: {page}")
