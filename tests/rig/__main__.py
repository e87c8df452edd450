"""`python -m rig`, from tests/: builds the rig, prints how to use it, and removes it at Ctrl-C."""

import argparse
import sys
import tempfile
from pathlib import Path

from dragoman.run.errors import UserError
from rig import Rig, rig_problem

EXAMPLE = """\
example: two hosts with a link of 100 Mbit/s each, until Ctrl-C
  python -m rig --hosts 2 --rate 100mbit
"""


def main() -> int:
    """Runs the command; returns its exit code."""
    arguments = parse_arguments()
    if problem := rig_problem():
        print(problem, file=sys.stderr)
        return 1
    try:
        with tempfile.TemporaryDirectory(prefix="dragoman-rig-") as folder:
            hold_rig(Rig(folder=Path(folder), **vars(arguments)))
    except UserError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m rig",
        description="Several real hosts on this machine, each with its own name, address, sshd and link. Needs root.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--hosts", type=int, default=2, help="number of hosts (default: 2)")
    parser.add_argument("--rate", help="rate of each host's link, e.g. 10mbit, 100mbit or 1gbit (default: unlimited)")
    parser.add_argument("--decoy", action="store_true", help="add an interface to each host that reaches no other host")
    parser.add_argument("--ipv6", action="store_true", help="give the hosts addresses of IPv6 only")
    return parser.parse_args()


def hold_rig(rig: Rig) -> None:
    """Keeps the rig until Ctrl-C or the end of the input; SIGTERM raises SystemExit."""
    try:
        with rig:
            print(usage(rig), flush=True)
            for _ in sys.stdin:
                pass
    except KeyboardInterrupt:
        print("\nThe rig is being removed.", file=sys.stderr)


def usage(rig: Rig) -> str:
    """Returns how to use this rig, with its names and paths."""
    lines = [f"{host.name}  {host.address}" for host in rig.hosts]
    host_list = ",".join(f"{host.name}:2" for host in rig.hosts)
    return "\n".join(
        [
            "The rig is up:",
            *(f"  {line}" for line in lines),
            "Train on it, from another terminal:",
            f"  dragoman train CONFIG --hosts {host_list} --ssh-config {rig.ssh_config}",
            "Look into a host:",
            f"  ssh -F {rig.ssh_config} {rig.hosts[0].name}",
            f"Each host sees a folder of its own at {rig.private}; all other files are shared.",
            "Ctrl-C removes the rig.",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
