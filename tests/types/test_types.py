"""What a type checker says about uses of the API: nothing about right ones, something about each wrong one."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WRONG_USES = ROOT / "tests" / "types" / "wrong_uses.py"
UNTYPED = {"integrations.md"}  # its examples are decorated by frameworks that say nothing of types
DOCUMENTS = sorted([ROOT / "README.md", *(path for path in (ROOT / "docs").glob("*.md") if path.name not in UNTYPED)])
WAIT_S = 300

# What excerpts take for granted: blocks that import nothing.
BEFORE_EXCERPTS = """
import json
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import stentor

client = stentor.connect()
chance, amount, START = random.Random(), 1.5, datetime.now(UTC)
f: Any
orders: Any
spark: Any
revenue: Any
to_json_value: Any
"""


@pytest.fixture(scope="module")
def complaints(tmp_path_factory):
    """Runs `mypy --strict` on files: the errors as (file, line, text)."""
    cache = tmp_path_factory.mktemp("mypy")

    def run(files):
        done = subprocess.run(
            [
                *(sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml")),
                *("--cache-dir", str(cache), "--no-error-summary", "--hide-error-context", "--no-pretty"),
                *map(str, files),
            ],
            cwd=ROOT,
            text=True,
            capture_output=True,
            timeout=WAIT_S,
            check=False,
        )
        assert done.returncode in (0, 1), done.stdout + done.stderr
        found = re.findall(r"^(.+?):(\d+): error: (.*)$", done.stdout, re.MULTILINE)
        # Examples may use packages that the tests do not need: what is missing here is no mistake of theirs.
        return [(Path(file).name, int(line), text) for file, line, text in found if "[import-not-found]" not in text]

    return run


@pytest.mark.timeout(WAIT_S)
def test_each_wrong_use_is_refused_and_no_right_one(complaints):
    lines = WRONG_USES.read_text(encoding="utf-8").splitlines()
    marked = {number for number, line in enumerate(lines, 1) if re.search(r"# wrong: \w", line)}
    found = complaints([WRONG_USES])
    refused = {line for _, line, _ in found}
    assert len(marked) >= 20
    assert {n: lines[n - 1].strip() for n in sorted(marked - refused)} == {}, "not refused"
    assert [error for error in found if error[1] not in marked] == [], "refused though it is right"


def test_a_public_call_takes_no_options_of_any_kind():
    """Neither `**options: Any` nor an undeclared word: all that a call takes has a name and a type."""
    loose = []
    for path in sorted((ROOT / "src" / "stentor" / "client").glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for owner in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name[0] != "_"):
            for call in (n for n in owner.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)):
                kind = call.args.kwarg.annotation if call.args.kwarg and call.name[0] != "_" else None
                if kind is not None and not ast.unparse(kind).startswith("Unpack["):
                    loose.append(f"{path.name}: {owner.name}.{call.name}")
    assert loose == []


@pytest.mark.timeout(WAIT_S)
def test_the_examples_are_right(complaints):
    examples = sorted((ROOT / "examples").rglob("*.py"))
    assert len(examples) >= 6
    assert complaints(examples) == []


def blocks():
    """The Python of the documents: (a name for it, the code)."""
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        for block in re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
            line = text.count("\n", 0, block.start()) + 1
            before = "" if re.search(r"^(import|from) ", block[1], re.MULTILINE) else BEFORE_EXCERPTS
            yield f"{path.stem.replace('-', '_')}_line_{line}".lower(), before + block[1]


@pytest.mark.timeout(WAIT_S)
def test_the_python_of_the_documents_is_right(complaints, tmp_path):
    files = []
    for name, code in blocks():
        file = tmp_path / f"{name}.py"
        file.write_text(code, encoding="utf-8")
        files.append(file)
    assert len(files) >= 15
    assert complaints(files) == []
