"""The command that writes job files and commands for other launchers."""

from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.help_text import add_command
from dragoman.cli.output import say


def add_launch_command(app: typer.Typer) -> None:
    """Adds the command to the command line."""
    add_command(
        app,
        launch,
        "dragoman launch my.toml --for slurm --nodes 2 --workers-per-node 4 --time 24:00:00",
        "dragoman launch my.toml --for kubernetes --nodes 2 --image my/dragoman:1 --claim corpora --out my.yaml",
        "dragoman launch my.toml --for docker --nodes 2 --workers-per-node 2 --out docker",
        "dragoman launch my.toml --for mpirun --hosts a:2,b:2 --run-dir /shared/runs/my",
        "dragoman launch my.toml --for srun --nodes 2 --workers-per-node 4",
        "dragoman launch my.toml --for torchrun --workers-per-node 4",
    )


def launch(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="Settings of the run.")],
    kind: Annotated[
        str, typer.Option("--for", metavar="KIND", help="slurm, kubernetes, docker, mpirun, srun or torchrun.")
    ],
    nodes: Annotated[int | None, typer.Option(min=1, help="Number of machines. Default: 1.")] = None,
    workers_per_node: Annotated[int, typer.Option(min=1, help="Worker processes on each machine.")] = 1,
    gpus_per_node: Annotated[
        int | None, typer.Option(min=0, help="GPUs on each machine; 0 trains on CPUs. Default: one per worker.")
    ] = None,
    cpus_per_worker: Annotated[
        int | None,
        typer.Option(min=1, help="Cores for each worker. Default: 4; mpirun: an equal share; torchrun: 1 if several."),
    ] = None,
    hosts: Annotated[
        str | None,
        typer.Option(metavar="A:N,B:N", help="mpirun, torchrun: machines, with the number of workers on each."),
    ] = None,
    ssh_config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="mpirun: ssh config file, like ssh -F.")
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="The run folder, shared by all nodes. Default: runs/NAME.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the job. Default: from the name of the config.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change a setting; may be repeated.")
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(metavar="[D-]HH:MM:SS", help="slurm (default 12:00:00), srun, kubernetes: time limit."),
    ] = None,
    partition: Annotated[str | None, typer.Option(help="slurm, srun: the partition.")] = None,
    image: Annotated[
        str | None, typer.Option(help="Docker, Kubernetes: an image with dragoman. Default: dragoman:VERSION.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder that containers see. Default for docker: the current one; for Kubernetes: /data.",
        ),
    ] = None,
    claim: Annotated[
        str | None, typer.Option(help="Kubernetes: the volume claim mounted as --data. Default: NAME-data.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE|FOLDER", help="File to write; a folder for docker. Default: print it.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
) -> None:
    """Write a job file or a command for another launcher.

    For Slurm, Kubernetes and Docker it is a file: an sbatch script, a TrainJob, or a Dockerfile and compose.yaml.
    For mpirun, srun and torchrun it is a command with full paths: copied into any shell, it needs no activated
    environment, neither here nor on other machines.
    """
    from dragoman.launch.job_files.render import build_job_files, save_files, show_files
    from dragoman.launch.job_files.request import JobRequest, choose_hosts, name_job
    from dragoman.run.config import load_settings

    chosen = choose_hosts(hosts, nodes, workers_per_node)
    request = JobRequest(
        config=config,
        settings=load_settings(config, overrides or []),
        name=name or name_job(config),
        overrides=tuple(overrides or []),
        num_nodes=len(chosen) if chosen else nodes or 1,
        workers_per_node=workers_per_node,
        gpus_per_node=workers_per_node if gpus_per_node is None else gpus_per_node,
        cpus_per_worker=cpus_per_worker,
        run_dir=run_dir,
        time=time,
        partition=partition,
        image=image,
        data=data,
        claim=claim,
        hosts=chosen,
        ssh_config=ssh_config,
    )
    files = build_job_files(kind, request)
    if out is None:
        typer.echo(show_files(files), nl=False)
        return
    for path in save_files(files, out, force):
        say(f"Written to {path}; its first lines say how to use it.")
