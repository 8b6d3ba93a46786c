import ast
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "stentor"

FUNCTION_LINES_MAX = 60

# "file.py::function": why it may be longer. Empty is the goal.
LONG_FUNCTIONS_ALLOWED: dict[str, str] = {}

# What the core must not know: a clock, chance, the network, the disk, Arrow.
IMPURE_MODULES = {"time", "random", "socket", "os", "pyarrow"}

# Where a bound that is not in limits.py must say why it is what it is.
BOUNDED_FOLDERS = ("broker", "client", "coordination", "core", "transport")
BOUND = re.compile(r"_(S|US|MS|MAX|MIN)$")

# Only the command line talks to standard output.
MODULES_THAT_PRINT = ("cli",)

TEXT_SUFFIXES = {".py", ".md", ".toml", ".txt", ".yml", ".yaml", ".json", ".cfg", ".sh", ".pyi"}
IGNORED_FOLDERS = {".git", ".venv", "data", "build", "dist", "__pycache__", "results", ".work"}

# Written in two halves, so that this file does not find itself.
UNFINISHED_MARKS = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")) + r")\b")
MACHINE_PATHS = re.compile(r"(?<![\w.$}])/(home|Users|root|work|mnt|opt)/\w")


def repository_files():
    for path in sorted(ROOT.rglob("*")):
        folders = path.relative_to(ROOT).parts[:-1]
        if IGNORED_FOLDERS.intersection(folders) or any(name.startswith(".") and name != ".ci" for name in folders):
            continue
        if path.is_file() and path.suffix in TEXT_SUFFIXES:
            yield path


def python_files(folder: Path):
    return [path for path in sorted(folder.rglob("*.py")) if not IGNORED_FOLDERS.intersection(path.parts)]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imported_modules(tree: ast.Module):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.partition(".")[0]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def calls(tree: ast.Module):
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node.lineno


def lines_matching(pattern: re.Pattern[str], path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [f"{name_of(path)}:{number}" for number, line in enumerate(lines, 1) if pattern.search(line)]


SOURCE_FILES = python_files(SOURCE)
TEST_FILES = python_files(ROOT / "tests")


def test_there_is_something_to_check():
    assert SOURCE_FILES
    assert TEST_FILES


@pytest.mark.parametrize("path", SOURCE_FILES, ids=name_of)
def test_every_module_says_what_it_is_for(path):
    assert ast.get_docstring(tree_of(path)), "the module has no docstring"


def test_no_function_is_longer_than_60_lines():
    long = {
        f"{name_of(path)}::{node.name}": node.end_lineno - node.lineno + 1
        for path in SOURCE_FILES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX
    }
    assert {name: lines for name, lines in long.items() if name not in LONG_FUNCTIONS_ALLOWED} == {}
    assert set(LONG_FUNCTIONS_ALLOWED) <= set(long), "these are short now; take them off the list"


def bounds_without_a_reason(path: Path):
    """Numbers of a module that neither limits.py nor a comment or docstring beside them explains."""
    lines, body = path.read_text(encoding="utf-8").splitlines(), tree_of(path).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        name = ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
        explained = isinstance(after, ast.Expr) or "#" in lines[node.lineno - 1] or "limits" in ast.unparse(node.value)
        if BOUND.search(name) and any(char.isdigit() for char in ast.unparse(node.value)) and not explained:
            yield f"{name_of(path)}: {name}"


@pytest.mark.parametrize("folder", BOUNDED_FOLDERS)
def test_every_bound_has_a_reason(folder):
    found = [one for path in python_files(SOURCE / folder) for one in bounds_without_a_reason(path)]
    assert found == [], "move it to limits.py, or say why beside it"


def test_no_two_classes_have_the_same_name():
    found: dict[str, list[str]] = {}
    for path in SOURCE_FILES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(name_of(path))
    assert {name: paths for name, paths in found.items() if len(paths) > 1} == {}


def test_only_the_command_line_prints():
    found = [
        f"{name_of(path)}:{line}"
        for path in SOURCE_FILES
        if path.relative_to(SOURCE).parts[0] not in MODULES_THAT_PRINT
        for function, line in calls(tree_of(path))
        if function == "print"
    ]
    assert found == [], "use logging"


def test_the_core_has_no_clock_chance_network_disk_or_arrow():
    found = {
        name_of(path): sorted(impure)
        for path in python_files(SOURCE / "core")
        if (impure := IMPURE_MODULES.intersection(imported_modules(tree_of(path))))
    }
    assert found == {}


def test_nothing_is_taken_from_the_front_of_a_plain_dict():
    """Each search for the first key goes through all that was deleted before it (C35)."""
    front = re.compile(r"(del |\.pop\().*next\(iter\(")
    found = [place for path in python_files(SOURCE) for place in lines_matching(front, path)]
    assert found == [], "use popitem(last=False) of an OrderedDict"


def test_no_test_sleeps():
    found = [
        f"{name_of(path)}:{line}"
        for path in TEST_FILES
        for function, line in calls(tree_of(path))
        if function in {"time.sleep", "sleep"}
    ]
    assert found == [], "wait for a condition with a deadline"


def test_no_line_ends_in_white_space_and_only_make_uses_tabs():
    pattern = re.compile(r"[ \t]+$|\t")
    assert [place for path in repository_files() for place in lines_matching(pattern, path)] == []


def test_every_text_file_ends_with_one_newline():
    bad = [
        name_of(path)
        for path in repository_files()
        if (text := path.read_text(encoding="utf-8")) and (not text.endswith("\n") or text.endswith("\n\n"))
    ]
    assert bad == []


def test_nothing_is_marked_as_unfinished():
    assert [place for path in repository_files() for place in lines_matching(UNFINISHED_MARKS, path)] == []


def test_no_path_of_a_developers_machine_is_in_the_tree():
    assert [place for path in repository_files() for place in lines_matching(MACHINE_PATHS, path)] == []


@pytest.mark.skipif(shutil.which("git") is None or not (ROOT / ".git").exists(), reason="not a git checkout")
def test_nothing_that_is_generated_is_tracked():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    generated = re.compile(r"(^|/)(__pycache__|\.venv|\.mypy_cache|\.ruff_cache)/|\.pyc$|^data/")
    assert [name for name in tracked.stdout.splitlines() if generated.search(name)] == []
