"""A Dockerfile and a compose file: one container per machine, on the machine's own network, without sshd inside."""

from pathlib import Path
from textwrap import indent

from dragoman.launch.job_files.containers import DEFAULT_DATA, DEFAULT_IMAGE, require_below, torchrun_arguments
from dragoman.launch.job_files.request import (
    SECONDS_TO_SAVE,
    JobRequest,
    absolute,
    double_dollars,
    train_command,
    yaml_list,
    yaml_text,
)

_DOCKERFILE = """\
# An image with dragoman in it. Build it in the folder of dragoman's source (the one with pyproject.toml):
#   docker build --tag {image} --file Dockerfile .
# GPUs need nothing more in here: the libraries come with torch, the driver with the machine's container toolkit.
FROM python:3.11-slim
# Where pip finds packages; give it with --build-arg to use a mirror, or one that has torch without GPU libraries.
ARG PIP_INDEX_URL
WORKDIR /opt/dragoman
# torch first and alone: the layer is large, and stays when only dragoman changes.
COPY constraints.txt ./
RUN pip install --no-cache-dir --constraint constraints.txt torch
COPY pyproject.toml README.md LICENSE ./
COPY dragoman ./dragoman
RUN pip install --no-cache-dir --constraint constraints.txt .
CMD ["dragoman", "--help"]
"""

_FIRST_ADDRESS = "${MASTER_ADDR:?Set MASTER_ADDR to the address of the machine that runs node0.}"
_PORT = "${MASTER_PORT:-29500}"


def docker_files(request: JobRequest) -> dict[str, str]:
    """The two files, by the names Docker looks for."""
    data = absolute(request.data or DEFAULT_DATA)
    config = absolute(request.config)
    run_dir = absolute(request.run_dir or data / "runs" / request.name)
    paths = {"The config": config, "The run folder": run_dir, "data.prepared": absolute(request.settings.data.prepared)}
    for what, path in paths.items():
        require_below(path, data, what)
    train = train_command(config, run_dir, request.overrides)
    services = "\n".join(_service(request, node, train) for node in range(request.num_nodes))
    compose = "\n".join([_introduction(request, data), _shared_part(request, data), "services:", services, ""])
    return {"Dockerfile": _DOCKERFILE.format(image=request.image or DEFAULT_IMAGE), "compose.yaml": compose}


def _introduction(request: JobRequest, data: Path) -> str:
    starts = [
        f"#   on machine {node + 1}:      docker compose --profile node{node} up --detach"
        for node in range(request.num_nodes)
    ]
    if request.num_nodes > 1:
        starts.insert(0, "#   on every machine:  export MASTER_ADDR=ADDRESS")
        starts.append(
            "# ADDRESS is the first machine's, as the others reach it; its port 29500 (or MASTER_PORT) must be open."
        )
    lines = [
        f"# Trains {request.config} with {request.workers_in_words}; written by `dragoman launch --for docker`.",
        "# Every machine needs the image (see Dockerfile), this file, and the same shared folder",
        f"# {data}",
        "# with the config, the prepared corpus and the run. Then start it",
        *starts,
        "# Follow it with `docker compose --profile node0 logs --follow`. `docker compose --profile node0 stop` saves",
        "# and ends it on all machines. Started again, it continues where it was saved last.",
    ]
    return "\n".join(lines)


def _shared_part(request: JobRequest, data: Path) -> str:
    folder = yaml_text(double_dollars(str(data)))
    gpus = f"""
  # Needs the NVIDIA container toolkit on the machine.
  deploy:
    resources:
      reservations:
        devices:
          - driver: nvidia
            count: {request.gpus_per_node}
            capabilities: [gpu]"""
    return f"""\
name: {request.name}

x-node: &node
  image: {yaml_text(request.image or DEFAULT_IMAGE)}
  # The machine's network as it is: workers choose their ports freely, and nothing lies between them and the wire.
  network_mode: host
  # GPUs of one machine talk through shared memory, of which containers otherwise have 64 MB.
  ipc: host
  init: true
  # The config may name its corpus relative to the folder it is used from.
  working_dir: {yaml_text(double_dollars(str(_working_folder(request, data))))}
  environment:
    # Otherwise torchrun gives every worker one thread.
    OMP_NUM_THREADS: "{request.cpus_per_worker}"
    # Passed on where they are set: the network card to use, on machines where the wrong one is taken.
    GLOO_SOCKET_IFNAME:
    NCCL_SOCKET_IFNAME:
  volumes:
    # The same path inside as outside. A folder that is missing is an error, not a new empty one.
    - type: bind
      source: {folder}
      target: {folder}
      bind:
        create_host_path: false{gpus if request.gpus_per_node else ""}
  # A failed run is continued, but what fails again and again is left for people to look at.
  restart: on-failure:5
  # After SIGTERM workers finish their step and save before they are killed.
  stop_grace_period: {SECONDS_TO_SAVE}s
"""


def _working_folder(request: JobRequest, data: Path) -> Path:
    return Path.cwd() if Path.cwd().is_relative_to(data) else absolute(request.config).parent


def _service(request: JobRequest, node: int, train: list[str]) -> str:
    command = [
        "torchrun",
        f"--nnodes={request.num_nodes}",
        f"--nproc-per-node={request.workers_per_node}",
        f"--node-rank={node}",
        f"--master-addr={_FIRST_ADDRESS if request.num_nodes > 1 else '127.0.0.1'}",
        f"--master-port={_PORT}",
        *torchrun_arguments(train),
    ]
    lines = f"node{node}:\n  <<: *node\n  profiles: [node{node}]\n  command:\n{yaml_list(command, indent=4)}"
    return indent(lines, "  ")
