"""Every run of pytest beside an installed Stentor imports the plugin: it must cost nothing until a test uses it."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
HEAVY = ("aiohttp", "crc32c", "msgspec", "numpy", "pandas", "prometheus_client", "pyarrow", "rich", "typer", "uvloop")


def entry_point() -> str:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]["stentor"]


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=50).stdout


def test_loading_the_plugin_loads_two_modules_of_ours_and_nothing_else_that_pytest_lacks():
    before = set(run("import pytest, sys; print(*sys.modules)").split())
    after = set(run(f"import pytest, sys; import {entry_point()}; print(*sys.modules)").split())
    added = after - before
    assert {name for name in added if name.split(".")[0] == "stentor"} == {
        "stentor",
        "stentor._version",
        "stentor.pytest_plugin",
    }
    assert not added & set(HEAVY)
    assert {name.split(".")[0] for name in added} - set(sys.stdlib_module_names) <= {"stentor"}


@pytest.mark.parametrize(
    "place", [pytest.param("stentor.pytest_plugin", marks=pytest.mark.long), "stentor.testing.plugin"]
)
def test_the_fixtures_are_found_under_the_old_name_too(place, tmp_path):
    (tmp_path / "test_it.py").write_text("def test_it(stentor_client):\n    stentor_client.publish('t', 'hello')\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:stentor", "-p", place, "-p", "no:cacheprovider", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr
