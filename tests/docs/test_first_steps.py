"""The page of first steps, step by step: what it tells people to type is typed, and prints what it says."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "first-steps.md"
WAIT_S = 60
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def steps():
    """(language, text before it, code, what it prints) of each block, in order."""
    text = PAGE.read_text(encoding="utf-8")
    found = list(BLOCK.finditer(text))
    end = 0
    for block, following in zip(found, [*found[1:], None], strict=True):
        if block[1] != "text":
            answered = following is not None and following[1] == "text"
            yield block[1], text[end : block.start()], block[2], following[2] if answered else None
        end = block.end()


def same_for_all(printed):
    """What differs from one time to the next stands for itself: ids, ports."""
    printed = re.sub(r"\b[0-9a-f]{16}\b", "ID", printed)
    printed = re.sub(r"\bbroker-[0-9a-f]{8}\b", "BROKER", printed)
    return re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:PORT", printed)


@pytest.fixture
def clone(tmp_path):
    """A folder that looks like a clone after `make run`: an environment in `.venv`."""
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name, arguments in (("stentor", "-m stentor "), ("python", "")):
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments}"$@"\n', encoding="utf-8")
        program.chmod(0o755)
    (programs / "activate").write_text(f'PATH="{programs}:$PATH"\n', encoding="utf-8")
    return tmp_path


@pytest.fixture
def environment():
    path = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "STENTOR_LOG_LEVEL": "warning", "PYTHONWARNINGS": "error"}


@pytest.fixture
def served(clone, environment):
    """The broker that `make run` starts, on free ports, and the line that it prints."""
    recipe = subprocess.run(
        ["make", "run", "--dry-run"], cwd=ROOT, text=True, capture_output=True, timeout=WAIT_S, check=True
    )
    assert 'exec .venv/bin/stentor serve --data "./data"' in recipe.stdout
    process = subprocess.Popen(
        [str(clone / ".venv" / "bin" / "stentor"), "serve", "--data", "./data"],
        cwd=clone,
        env={**environment, "STENTOR_PORT": "0", "STENTOR_HTTP_PORT": "0"},
        text=True,
        stdout=subprocess.PIPE,
    )
    try:
        yield process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        process.wait(WAIT_S)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_first_steps_can_be_followed_word_for_word(clone, environment, served):
    (_, _, command, ready), *others = steps()
    assert command == "make run\n"
    assert same_for_all(served) == same_for_all(ready)
    environment["STENTOR_URL"] = re.search(r"stentor://\S+", served)[0]
    before = ""
    for language, said, code, prints in others:
        if language == "python":
            name = re.search(r"Save it as `(\S+)`:\s*$", said)
            (clone / name[1]).write_text(code, encoding="utf-8")
            continue
        before = before or code.splitlines()[0]  # every shell begins by activating the environment
        lines = code if code.startswith(before) else f"{before}\n{code}"
        done = subprocess.run(
            ["sh", "-e", "-c", lines],
            cwd=clone,
            env=environment,
            text=True,
            capture_output=True,
            timeout=WAIT_S,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), code
        assert same_for_all(done.stdout) == same_for_all(prints), code


def test_the_readme_and_the_index_lead_there():
    assert "(docs/first-steps.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert "(first-steps.md)" in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
