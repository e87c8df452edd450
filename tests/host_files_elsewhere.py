"""A stand-in for another host in tests: its run folder is FOLDER, whatever path the launcher names.

Command: `python tests/host_files_elsewhere.py FOLDER [SECONDS]`; SECONDS is the delay of each answer.
"""

import sys
import time
from pathlib import Path
from typing import Any

from dragoman.launch.mirror import host_files


class RunReaderElsewhere(host_files.RunReader):
    """Reads another folder than the launcher names."""

    def __init__(self, _run: Path) -> None:
        super().__init__(Path(sys.argv[1]))

    def answer(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        time.sleep(float(sys.argv[2]) if len(sys.argv) > 2 else 0.0)
        return super().answer(request)


if __name__ == "__main__":
    host_files.RunReader = RunReaderElsewhere
    host_files.main()
