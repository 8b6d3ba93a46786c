"""What the documents tell people to type, typed."""

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import stentor
from stentor.testing import broker

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 30
NOT_RUN = {
    "pip install .",
    "pip install '.[cluster]'",
}  # it needs a network; the environment of these tests is its result


def blocks(name, *languages):
    """(line, language, code, what it prints) of each block of a document in these languages."""
    text = (ROOT / name).read_text(encoding="utf-8")
    found = list(re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    cases = []
    for block, following in zip(found, [*found[1:], None], strict=True):
        prints = None
        if following is not None and following[1] == "text" and not text[block.end() : following.start()].strip():
            prints = following[2]
        if block[1] in languages:
            line = text.count("\n", 0, block.start()) + 1
            cases.append(pytest.param(block[2], prints, id=f"{name}:{line}"))
    return cases


def is_test(case):
    return "def test_" in case.values[0]


DOCUMENTS = (
    "README.md",
    "docs/errors.md",
    "docs/resuming.md",
    "docs/tabular.md",
    "docs/testing.md",
    "docs/cluster.md",
    "docs/patterns/clone.md",
    "docs/patterns/clone-models.md",
    "docs/patterns/names.md",
    "docs/patterns/groups.md",
    "docs/tracing.md",
)
# What needs Spark is run in tests/spark/test_documents.py.
PYTHON = [case for name in DOCUMENTS for case in blocks(name, "python") if "stentor.spark" not in case.values[0]]
SHELL_LINES = [line for case in blocks("README.md", "sh") for line in case.values[0].splitlines()]
CLUSTER_LINES = [line for line in SHELL_LINES if line.startswith("stentor cluster ")]
COMMANDS = [
    case for case in blocks("README.md", "sh") if re.match(r"(\S*/)?stentor (?!serve|cluster|record)", case.values[0])
]
SPARK_LINES = {line for line in SHELL_LINES if line.startswith(("stentor record ", "stentor sql "))}


@pytest.fixture(scope="module")
def shop():
    """A broker in which somebody has followed the first steps."""
    with broker() as local:
        with local.client() as client:
            client.publish("orders.eu", "hello", key="42")
        yield local


def environment(url):
    path = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "STENTOR_URL": url, "PYTHONPATH": path, "PYTHONWARNINGS": "error"}


@pytest.fixture
def shell(tmp_path):
    """Runs shell lines in an empty folder where `stentor` and `.venv/bin/stentor` are this Stentor."""
    program = tmp_path / ".venv" / "bin" / "stentor"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m stentor "$@"\n', encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)

    def start(lines, url, **options):
        variables = environment(url)
        variables["PATH"] = f"{program.parent}{os.pathsep}{variables['PATH']}"
        variables.update(options)
        return subprocess.Popen(
            ["sh", "-e", "-c", lines],
            cwd=tmp_path,
            env=variables,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    return start


# --- Python -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "prints"), [case for case in PYTHON if not is_test(case)])
def test_a_python_block_runs_as_it_stands(code, prints, shop, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("STENTOR_URL", shop.url)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "block", "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    assert prints is None or printed == prints


@pytest.mark.parametrize(("code", "prints"), [case for case in PYTHON if is_test(case)])
def test_a_block_of_tests_passes_under_pytest(code, prints, tmp_path):
    file = tmp_path / "test_block.py"
    file.write_text(code, encoding="utf-8")
    plugin = [] if entry_points(group="pytest11", name="stentor") else ["-p", "stentor.pytest_plugin"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin, str(file)],
        cwd=tmp_path,
        env=environment("localhost:1"),
        text=True,
        capture_output=True,
        timeout=WAIT_S,
        check=False,
    )
    assert f"{code.count('def test_')} passed" in done.stdout, done.stdout + done.stderr


def test_the_documents_have_the_blocks_that_these_tests_expect():
    assert len([case for case in PYTHON if is_test(case)]) >= 3
    assert len([case for case in PYTHON if not is_test(case)]) >= 10
    assert len(COMMANDS) >= 2


# --- shell --------------------------------------------------------------------------------------


def test_the_first_lines_of_the_readme_work_word_for_word(shell):
    with broker() as local:
        process = shell(COMMANDS[0].values[0], local.url)
        out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out, err) == (0, "orders.eu partition 0 offset 0\nhello\n", "")


@pytest.mark.slow
@pytest.mark.parametrize(("lines", "prints"), COMMANDS[1:])
def test_a_block_of_commands_succeeds(lines, prints, shop, shell):
    process = shell(lines, shop.url)
    out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, err
    for word in ("orders.us", "one", "two", "three", "orders.copy", "all is well"):
        assert word in out


def test_the_serve_line_starts_a_broker_that_stops_when_told(shell):
    (line,) = [line for line in SHELL_LINES if line.startswith("stentor serve")]
    process = shell(f"exec {line}", "", STENTOR_PORT="0", STENTOR_HTTP_PORT="0", STENTOR_LOG_LEVEL="error")
    try:
        ready = process.stdout.readline()
        url = re.match(r"stentor ready on (stentor://\S+) ", ready)
        assert url, ready + process.stderr.read()
        with stentor.connect(url[1]) as client:
            assert client.publish("orders.eu", "hello").offset == 0
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=WAIT_S)
        assert (process.returncode, out, err) == (0, "", "")
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_cluster_lines_of_the_readme_work_word_for_word(shell):
    up, down = CLUSTER_LINES[0], CLUSTER_LINES[-1]
    assert (up.split()[2], down.split()[2]) == ("up", "down")
    process = shell("\n".join(CLUSTER_LINES), "")
    try:
        out, err = process.communicate(timeout=150)
        assert process.returncode == 0, out + err
        assert all(name in out for name in ("b0", "b1", "b2"))
    finally:
        process.kill()
        shell(f"{down} || true", "").communicate(timeout=60)


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize("line", [line for line in SHELL_LINES if line.startswith("make ")])
def test_a_make_line_names_a_target_that_make_knows(line):
    target = line.split()[1]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.search(rf"^{target}:.*## ", makefile, re.MULTILINE), "`make help` does not list it"
    subprocess.run([*line.split(), "--dry-run"], cwd=ROOT, capture_output=True, timeout=WAIT_S, check=True)


def test_every_shell_line_of_the_readme_is_covered():
    known = {line for case in COMMANDS for line in case.values[0].splitlines()}
    known |= NOT_RUN | set(CLUSTER_LINES) | SPARK_LINES
    rest = [line for line in SHELL_LINES if line not in known and not line.startswith(("make ", "stentor serve"))]
    assert rest == []


# --- examples -----------------------------------------------------------------------------------

EXAMPLES = {
    "quickstart.py": ([], "", "received Vienna with key 2\nthe topic holds 3 messages\n"),
    "producer_fast.py": (["5000", "50"], "", "5000 messages acknowledged"),
    "typed_topic.py": ([], "", "stopped: The value at examples.orders/0@3 does not fit Order"),
    "suicidal_snail.py": ([], "", "alert: snail is too slow on examples.prices/0: 5000 messages behind, with"),
    "feature_flags.py": ([], "", "service: now a request gets the new page\n"),
    "names.py": ([], "", "crashed: shop/2 expired\nleft: {'shop/3': '10.0.0.3:80'}\ngone: shop/3\n"),
    "job_pool.py": ([], "", "20 invoices are printed; the last one is invoice 7 at attempt 2\n"),
    "leader.py": ([], "", "9 pieces of work by 3 leaders, one after the other: True\n"),
    "arrow_analysis.py": ([], "", "3000 rows came back"),
    "async_chat.py": (["ada"], "hello\n", "ada: has joined\nada: hello\nada: has left\n"),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_as_it_stands(name, shop):
    arguments, typed, prints = EXAMPLES[name]
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), *arguments],
        env=environment(shop.url),
        input=typed,
        text=True,
        capture_output=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert prints in done.stdout
    assert done.stderr == ""


def test_every_example_is_run():
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(EXAMPLES) | {"revenue.py"}
