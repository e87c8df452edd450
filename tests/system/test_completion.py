"""A shell completes commands and options with the script that `dragoman completion` prints."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from program import call_dragoman, run_dragoman

ASK = """
source {script}
COMP_WORDS=({words}); COMP_CWORD={index}
_dragoman_completion {program}
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash on this machine")
@pytest.mark.parametrize(
    ("words", "expected"),
    [(["dragoman", "tra"], {"train", "translate"}), (["dragoman", "evaluate", "--refer"], {"--reference"})],
)
def test_bash_completes_commands_and_options(words: list[str], expected: set[str], tmp_path: Path):
    script, program = tmp_path / "completion.bash", tmp_path / "dragoman"
    script.write_text(call_dragoman("completion", "bash").stdout)
    program.write_text(f"#!{sys.executable}\nfrom dragoman.cli import main\n\nmain()\n")
    program.chmod(0o755)
    ask = ASK.format(script=script, words=" ".join(words), index=len(words) - 1, program=program)
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True, env=os.environ)
    assert set(done.stdout.split()) == expected


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_a_script(shell: str):
    assert f"complete_{shell}" in call_dragoman("completion", shell).stdout


def test_an_unknown_shell_is_wrong_usage():
    assert "'bash', 'zsh', 'fish'" in run_dragoman("completion", "tcsh", code=2).stderr
