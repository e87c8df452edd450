"""A manifest for Kubernetes: a TrainJob of Kubeflow Trainer, and the config it reads as a ConfigMap.

The config travels inside the manifest because pods see the cluster's volumes, not the machine of the person. What
is mounted is said by `runtimePatches`, which took the place of `podTemplateOverrides` in Kubeflow Trainer 2.2.
"""

from pathlib import Path
from textwrap import indent

from dragoman.launch.job_files.containers import DEFAULT_DATA, DEFAULT_IMAGE, require_below, torchrun_arguments
from dragoman.launch.job_files.request import (
    SECONDS_TO_SAVE,
    JobRequest,
    absolute,
    parse_time,
    train_command,
    yaml_block,
    yaml_list,
    yaml_text,
)
from dragoman.run.errors import UsageError

CONFIG_FOLDER = Path("/etc/dragoman")
CONFIG_NAME = "config.toml"


def kubernetes_files(request: JobRequest) -> dict[str, str]:
    """The manifest, by its usual name."""
    data = absolute(request.data or DEFAULT_DATA)
    if ":" in str(data):
        raise UsageError(f"--data {data} has a colon, which Kubernetes does not take where a volume is mounted.")
    run_dir = absolute(request.run_dir or Path("runs") / request.name, beside=data)
    require_below(run_dir, data, "The run folder")
    train = train_command(CONFIG_FOLDER / CONFIG_NAME, run_dir, _overrides_in_a_pod(request, data))
    parts = [_introduction(request), _config_map(request), "---", _train_job(request, data, train)]
    return {f"{request.name}.yaml": "\n".join(parts)}


def _overrides_in_a_pod(request: JobRequest, data: Path) -> list[str]:
    """Also names the corpus in full: pods look for a relative one in the mounted folder, the only one they know."""
    asked = request.settings.data.prepared
    prepared = absolute(asked, beside=data)
    require_below(prepared, data, "data.prepared")
    return [*request.overrides, *([] if prepared == asked else [f"data.prepared={prepared}"])]


def _introduction(request: JobRequest) -> str:
    return f"""\
# Trains {request.config} with {request.workers_in_words}; written by `dragoman launch --for kubernetes`.
# Needs: Kubeflow Trainer 2.2 or newer with its runtime torch-distributed; the image below where the cluster can pull
# it (the Dockerfile of `dragoman launch --for docker` builds it); the volume claim below, with the prepared corpus in
# it, which all nodes can mount at once (ReadWriteMany).
#   start:    kubectl apply --filename FILE
#   follow:   kubectl logs --follow --selector jobset.sigs.k8s.io/jobset-name={request.name}
#   stop:     kubectl delete --filename FILE
# Started again, it continues where it was saved last. Where a node is drained, it saves and stops: start it again."""


def _config_map(request: JobRequest) -> str:
    text = request.config.read_text(encoding="utf-8").strip() + "\n"
    return f"""\
apiVersion: v1
kind: ConfigMap
metadata:
  name: {request.name}-config
data:
  {CONFIG_NAME}: {yaml_block(text, indent=4)}"""


def _train_job(request: JobRequest, data: Path, train: list[str]) -> str:
    deadline = f"\n  activeDeadlineSeconds: {parse_time(request.time)}" if request.time else ""
    return f"""\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata:
  name: {request.name}
spec:
  runtimeRef:
    name: torch-distributed{deadline}
  trainer:
    numNodes: {request.num_nodes}
    numProcPerNode: {request.workers_per_node}
    image: {yaml_text(request.image or DEFAULT_IMAGE)}
    # The runtime tells torchrun nodes, ranks and the address of the first node in variables PET_*.
    command:
      - torchrun
    args:
{yaml_list(torchrun_arguments(train), indent=6)}
    env:
      # Otherwise torchrun gives every worker one thread.
      - name: OMP_NUM_THREADS
        value: "{request.cpus_per_worker}"
    # Both, and the same: Kubeflow has taken the number of workers for 1 where one of them was missing.
    resourcesPerNode:
      requests:
{indent(_resources(request), " " * 8)}
      limits:
{indent(_resources(request), " " * 8)}
  runtimePatches:
    - manager: dragoman/launch
      trainingRuntimeSpec:
        template:
          spec:
            replicatedJobs:
              - name: node
                template:
                  spec:
                    template:
                      spec:
{indent(_pod(request, data), " " * 24)}
"""


def _resources(request: JobRequest) -> str:
    cores = f'cpu: "{request.workers_per_node * request.cpus_per_worker}"'
    return f'{cores}\nnvidia.com/gpu: "{request.gpus_per_node}"' if request.gpus_per_node else cores


def _pod(request: JobRequest, data: Path) -> str:
    """What the runtime's pods get in addition."""
    volumes = [
        f"- name: data\n  persistentVolumeClaim:\n    claimName: {yaml_text(request.claim or f'{request.name}-data')}",
        f"- name: config\n  configMap:\n    name: {request.name}-config",
    ]
    mounts = [
        f"- name: data\n  mountPath: {yaml_text(str(data))}",
        f"- name: config\n  mountPath: {CONFIG_FOLDER}\n  readOnly: true",
    ]
    if request.gpus_per_node:
        # GPUs of one node talk through shared memory, of which pods otherwise have 64 MB.
        volumes.append("- name: shared-memory\n  emptyDir:\n    medium: Memory")
        mounts.append("- name: shared-memory\n  mountPath: /dev/shm")
    all_volumes, all_mounts = "\n".join(volumes), "\n".join(mounts)
    return f"""\
# After SIGTERM workers finish their step and save before they are killed.
terminationGracePeriodSeconds: {SECONDS_TO_SAVE}
volumes:
{indent(all_volumes, "  ")}
containers:
  - name: node
    volumeMounts:
{indent(all_mounts, " " * 6)}"""
