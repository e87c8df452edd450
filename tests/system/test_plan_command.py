"""The command `dragoman plan` as users type it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from program import Run


def test_help_has_examples(dragoman: Run):
    assert "Examples:\n  dragoman plan" in dragoman("plan", "--help").stdout


def test_a_plan_imports_neither_torch_nor_matplotlib():
    program = (
        "import sys; from typer.testing import CliRunner; from dragoman.cli.app import app\n"
        "assert CliRunner().invoke(app, ['plan']).exit_code == 0\n"
        "sys.exit('torch' in sys.modules or 'matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_plan_as_text(dragoman: Run):
    text = dragoman("plan", "--link", "100mbit", "--steps", 50_000, "--price-per-hour", 12).stdout
    assert "30.6 s per step" in text
    assert "365.3 MB per step, over 12.5 MB/s (100 Mbit/s)" in text
    assert "network-bound" in text
    assert "One node alone" in text
    assert "█" in text


def test_figures_as_json(dragoman: Run):
    done = dragoman("plan", "--link", "100mbit", "--steps", 50_000, "--price-per-hour", 12, "--json")
    figures = json.loads(done.stdout)
    assert 29 <= figures["seconds_per_step"]["predicted"] <= 31
    assert sum(figures["parts"].values()) == pytest.approx(figures["seconds_per_step"]["predicted"])
    wanted = {"bottleneck", "bytes_per_node_per_step", "hours", "cost", "fits_memory", "sizes", "advice", "assumptions"}
    assert wanted <= set(figures)
    assert figures["cost"] == pytest.approx(12 * figures["hours"])


def test_a_plan_in_a_file_own_hardware_and_a_chart(dragoman: Run, tmp_path: Path):
    (tmp_path / "plan.toml").write_text('device = "mine"\nnodes = 4\nlink = "lab"\n')
    (tmp_path / "hardware.toml").write_text(
        '[devices.mine]\nabout = "ours"\nmemory_bytes = 24e9\nmemory_bytes_per_second = 9e11\nsource = "measured"\n'
        "seconds_per_operation = 5e-6\npeak_flops = { fp16 = 1e14 }\n"
        "reached_share = { fp16 = { low = 0.1, typical = 0.2, high = 0.3 } }\n"
        '[links.lab]\nabout = "ours"\nlatency_seconds = 1e-5\nbytes_per_second = 5e9\nsource = "measured"\n'
        "goodput = { low = 0.8, typical = 0.9, high = 1.0 }\n"
    )
    command = ("plan", "plan.toml", "--hardware", "hardware.toml", "--nodes", 2, "--plot", "chart.svg")
    done = dragoman(*command, cwd=tmp_path)
    assert "2 × 2 mine, lab" in done.stdout
    assert done.stderr == "Written to chart.svg.\n"
    assert (tmp_path / "chart.svg").stat().st_size > 1_000


def test_the_list_of_hardware(dragoman: Run):
    assert "12.5 MB/s (100 Mbit/s)" in dragoman("plan", "--list").stdout
    assert set(json.loads(dragoman("plan", "--list", "--json").stdout)) == {"devices", "links", "software"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.toml"], "There is no config file none.toml"),
        (["--nodes", 0], "nodes = 0"),
        (["--price-per-hour", "nan", "--steps", 5], "price_per_hour = nan"),
        (["--price-per-hour", 5], "give --steps too"),
        (["--link", "100M"], "bits or bytes"),
        (["--device", "K80"], "There is no device 'K80'"),
        (["--plot", "chart.pdf"], "must end in .svg or .png"),
    ],
)
def test_wrong_usage_is_one_message_and_code_2(dragoman: Run, tmp_path: Path, arguments, message):
    done = dragoman("plan", *arguments, cwd=tmp_path, code=2)
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
