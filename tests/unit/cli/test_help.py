import subprocess
import sys
import time

import pytest

import stentor
from stentor.cli.app import COMMANDS, run

# The goal is 0.3 s; no test depends on the speed of the machine, so this only catches a heavy import.
HELP_S_MAX = 1.0

HEAVY = ("pyarrow", "aiohttp", "msgspec", "rich", "asyncio", "pydantic", "prometheus_client")


def test_help_lists_every_command(capsys):
    assert run(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in COMMANDS)
    assert "Exit codes" in out


@pytest.mark.parametrize("command", COMMANDS)
def test_the_line_about_a_command_is_the_first_of_its_help(command, capsys):
    assert run([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"Usage: stentor {command}" in out
    assert COMMANDS[command] in out


@pytest.mark.parametrize("command", ["", "topic", "table", "cluster"])
def test_a_group_alone_prints_its_help(command, capsys):
    assert run(command.split()) == 0
    assert "Commands:" in capsys.readouterr().out


def test_version_is_the_packages(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"stentor {stentor.__version__}\n"


def test_help_imports_nothing_heavy():
    script = (
        "import sys\nfrom stentor.cli.app import run\nrun(['--help'])\n"
        f"print('LOADED', *[name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1].split() == ["LOADED"]


def test_help_answers_quickly():
    def measure() -> float:
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "stentor", "--help"], capture_output=True, check=True)
        return time.perf_counter() - started

    assert min(measure() for _ in range(3)) < HELP_S_MAX


def test_shell_completion_offers_commands():
    done = subprocess.run(
        [sys.executable, "-c", "from stentor.cli import main; main()"],
        env={"_STENTOR_COMPLETE": "complete_bash", "COMP_WORDS": "stentor to", "COMP_CWORD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["topic"]
