"""docs/integrations.md, typed: the application, the line that starts its worker, and the script that sends."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "integrations.md"


def section(framework):
    text = PAGE.read_text(encoding="utf-8")
    part = re.search(rf"^## {framework}\n(.*?)^## ", text, re.DOTALL | re.MULTILINE)[1]
    return re.findall(r"^```(?:python|text)\n(.*?)^```$", part, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(
    ("framework", "logged"), [("Taskiq", ""), ("Dramatiq", "a letter to Ada"), ("Celery", "invoice 7")]
)
def test_the_page_can_be_followed(framework, logged, workplace, shared, wait_until):
    pytest.importorskip(framework.lower())
    application, line, sender, *printed = section(framework)
    name = re.match(r"# (\w+\.py)\n", application)[1]
    workplace.environment["STENTOR_URL"] = shared.url
    (workplace.folder / name).write_text(application.replace("stentor://localhost:7440", shared.url))
    workplace.start(*shlex.split(line))
    done = subprocess.run(
        [sys.executable, "-c", sender],
        cwd=workplace.folder,
        env=workplace.environment,
        text=True,
        capture_output=True,
        timeout=40,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(printed)
    wait_until(lambda: logged in workplace.logs(), "the worker says so", seconds=30)
