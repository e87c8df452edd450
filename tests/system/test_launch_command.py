"""The command `dragoman launch` as people type it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from program import Run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The current folder, with a config; the corpus is not there."""
    (tmp_path / "my.toml").write_text('[data]\nprepared = "prepared"\n[training]\nvirtual_workers = 2\n')
    return tmp_path


def test_help_has_examples_and_imports_no_torch(dragoman: Run):
    assert "Examples:\n  dragoman launch" in dragoman("launch", "--help").stdout
    program = "import sys, dragoman.cli.launch, dragoman.launch.job_files.render; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_slurm_script_goes_to_standard_output(dragoman: Run, folder: Path):
    script = dragoman("launch", "my.toml", "--for", "slurm", "--nodes", 2, "--gpus-per-node", 0, cwd=folder).stdout
    assert script.startswith("#!/bin/bash\n")
    assert "#SBATCH --nodes=2\n" in script
    assert "--gpus" not in script
    assert f"train {folder}/my.toml --run-dir {folder}/runs/my --continue" in script
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_every_worker_has_a_gpu_by_default(dragoman: Run, folder: Path):
    script = dragoman("launch", "my.toml", "--for", "slurm", "--workers-per-node", 2, cwd=folder).stdout
    assert "#SBATCH --gpus-per-node=2\n" in script


def test_a_manifest_goes_to_a_file_once(dragoman: Run, folder: Path):
    command = ("launch", "my.toml", "--for", "kubernetes", "--name", "first", "--set", "training.max_steps=9")
    done = dragoman(*command, "--out", "job.yaml", cwd=folder)
    assert done.stdout == "Written to job.yaml; its first lines say how to use it.\n"
    _, train_job = yaml.safe_load_all((folder / "job.yaml").read_text())
    assert train_job["metadata"]["name"] == "first"
    assert "training.max_steps=9" in train_job["spec"]["trainer"]["args"]
    before = (folder / "job.yaml").read_bytes()
    assert "give --force" in dragoman(*command, "--out", "job.yaml", cwd=folder, code=1).stderr
    assert (folder / "job.yaml").read_bytes() == before
    dragoman(*command, "--out", "job.yaml", "--force", cwd=folder)


def test_the_example_of_the_readme_works_as_written(dragoman: Run, folder: Path):
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    (line,) = [line for line in readme.splitlines() if line.startswith("dragoman launch mine.toml --for slurm")]
    command, _, other_kinds = line.partition("#")
    (settings,) = re.findall(r"with `mine\.toml`:\n```toml\n(.*?)```", readme, re.DOTALL)
    (folder / "mine.toml").write_text(settings)
    for kind in ("slurm", *re.findall(r"or (\w+)", other_kinds)):
        words = command.replace("--for slurm", f"--for {kind}").split()[1:]
        assert "mine.toml" in dragoman(*words, cwd=folder).stdout


def test_docker_files_go_to_a_folder(dragoman: Run, folder: Path):
    dragoman("launch", "my.toml", "--for", "docker", "--nodes", 2, "--data", folder, "--out", "docker", cwd=folder)
    assert sorted(path.name for path in (folder / "docker").iterdir()) == ["Dockerfile", "compose.yaml"]
    assert list(yaml.safe_load((folder / "docker/compose.yaml").read_text())["services"]) == ["node0", "node1"]


def test_a_command_for_hosts_has_the_paths_of_this_installation(dragoman: Run, folder: Path):
    options = ("--for", "mpirun", "--hosts", "a,b", "--set", "training.max_steps=9")
    *comments, launcher, worker = dragoman("launch", "my.toml", *options, cwd=folder).stdout.splitlines()
    assert all(line.startswith("# ") for line in comments)
    assert launcher.startswith("mpirun -H a:1,b:1 ")
    program = Path(sys.executable).with_name("dragoman")
    settings = f"--set training.max_steps=9 --set data.prepared={folder}/prepared"
    assert worker == f"  {program} train {folder}/my.toml --run-dir {folder}/runs/my {settings} --continue"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.toml", "--for", "slurm"], "There is no config file none.toml"),
        (["my.toml", "--for", "slurm", "--nodes", 3], "3 workers on 3 nodes cannot share 2 virtual workers"),
        (["my.toml", "--for", "slurm", "--set", "training.steps=3"], "unknown key"),
        (["my.toml", "--for", "mpirun", "--nodes", 2], "--for mpirun needs the names of the 2 machines"),
        (["my.toml", "--for", "mpirun", "--nodes", 1, "--hosts", "a,b"], "does not fit the 2 hosts"),
        (["my.toml", "--for", "mpirun", "--hosts", "a,-b"], "'-b' is not a host name"),
    ],
)
def test_wrong_usage_is_one_message_and_code_2(dragoman: Run, folder: Path, arguments, message):
    done = dragoman("launch", *arguments, cwd=folder, code=2)
    assert message in done.stderr
    assert done.stdout == ""
