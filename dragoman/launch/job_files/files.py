"""The files of a job: made, shown or written."""

from pathlib import Path

from dragoman.launch.job_files.docker import docker_files
from dragoman.launch.job_files.kubernetes import kubernetes_files
from dragoman.launch.job_files.request import JobRequest, check_request
from dragoman.launch.job_files.slurm import slurm_files
from dragoman.run.errors import UsageError, UserError
from dragoman.run.files import write_text


def build_job_files(kind: str, request: JobRequest) -> dict[str, str]:
    """The text of each file by its name, after everything that was asked for has been checked."""
    match kind:
        case "slurm":
            build = slurm_files
        case "kubernetes":
            build = kubernetes_files
        case "docker":
            build = docker_files
        case _:
            raise UsageError(f"--for is {kind!r}; it can be slurm, kubernetes or docker.")
    check_request(request, kind)
    return build(request)


def show_files(files: dict[str, str]) -> str:
    """All of it as one text; where there are several files, a line before each says which."""
    if len(files) == 1:
        return "".join(files.values())
    return "\n".join(f"# --- {name} ---\n{text}" for name, text in files.items())


def save_files(files: dict[str, str], out: Path, may_replace: bool) -> list[Path]:
    """Writes them, a single one to `out` itself unless that is a folder; returns where they are now."""
    is_folder = len(files) > 1 or out.is_dir()
    texts = {out / name if is_folder else out: text for name, text in files.items()}
    for path in texts:
        if path.exists() and not may_replace:
            raise UserError(f"{path} exists already: give --force to replace it, or another place with --out.")
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, text)
    except OSError as error:
        raise UserError(f"{out} cannot be written: {error.strerror}.") from error
    return list(texts)
