"""The documents hang together, and name only what exists."""

import ast
import html
import os
import re
import shlex
import signal
import subprocess
import tomllib
import urllib.request
from pathlib import Path

import msgspec
import pytest
import typer

import stentor
from stentor import limits
from stentor.broker import load_config
from stentor.cli.app import COMMANDS, app
from stentor.testing import broker
from stentor.wire.frames import Kind
from stentor.wire.messages import TopicSettings

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "stentor"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").glob("*.md")])

ARCHITECTURE_BYTES_MAX = 14_000  # of what comes before the map of modules

# Names in capitals that are neither limits nor frame kinds.
OTHER_CAPITALS = {"LZ4_FRAME", "ON_THE_WIRE", "PYSPARK_PYTHON", "TOPIC_ID"}


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def text_of(path):
    return path.read_text(encoding="utf-8")


def prose_of(path):
    """A document without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", text_of(path), flags=re.DOTALL | re.MULTILINE)


def inline_code(path):
    return re.findall(r"`([^`\n]+)`", prose_of(path))


def anchors(path):
    """The anchors that a document's headings make."""
    headings = re.findall(r"^#+ (.+)$", prose_of(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def table(path, first):
    """The rows of the table whose first column is called `first`."""
    block = re.search(rf"^\| {first} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text_of(path), re.MULTILINE)
    assert block, f"{name_of(path)} has no table of {first}"
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in block[1].splitlines()]


# --- links --------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_every_link_leads_somewhere(path):
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(path)):
        if target.startswith(("http://", "https://")):
            continue
        file, _, anchor = target.partition("#")
        found = (path.parent / file).resolve() if file else path
        if not found.exists() or (anchor and anchor not in anchors(found)):
            broken.append(target)
    assert broken == []


def test_the_index_links_every_document():
    index = text_of(ROOT / "docs" / "index.md")
    names = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert [name for name in sorted(names - {"index.md"}) if f"({name})" not in index] == []


# --- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_every_limit_that_is_named_exists(path):
    named = {word for code in inline_code(path) for word in re.findall(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b", code)}
    kinds = {kind.name for kind in Kind}
    unknown = {name for name in named if not hasattr(limits, name) and not name.startswith("STENTOR_")}
    assert unknown - kinds - OTHER_CAPITALS == set()


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", ROOT / "docs" / "guarantees.md", ROOT / "docs" / "operating.md"], ids=name_of
)
def test_every_class_that_is_named_is_public(path):
    named = {code for code in inline_code(path) if re.fullmatch(r"(?:[A-Z][a-z]+){2,}", code)}
    named |= {
        word
        for code in re.findall(r"^```python\n(.*?)^```$", text_of(path), re.DOTALL | re.MULTILINE)
        for word in re.findall(r"stentor\.(\w+)", code)
        if word not in ("testing", "spark")
    }
    assert named
    public = {*stentor.__all__, "LimitNOFILE", "TimeoutStopSec"}
    assert named - public == set()


def command_lines():
    """Every `stentor …` that the documents show, in prose and in blocks."""
    for path in DOCUMENTS:
        if path.name == "cli.md":
            continue
        blocks = re.findall(r"^```(?:sh|text|ini)\n(.*?)^```$", text_of(path), re.DOTALL | re.MULTILINE)
        lines = [line for block in blocks for line in block.splitlines()]
        for line in [*inline_code(path), *lines]:
            for part in re.findall(r"(?:^|[\s|/=])stentor ((?:[a-z]+)\b[^|`]*)", line):
                if part.split()[0] in COMMANDS:
                    yield pytest.param(part, id=f"{name_of(path)}: {part[:40]}")


@pytest.mark.parametrize("line", list(command_lines()))
def test_a_command_that_is_shown_has_these_options(line):
    words = shlex.split(html.unescape(line), comments=False)
    command = typer.main.get_command(app).get_command(None, words[0])
    if len(words) > 1 and words[1] in getattr(command, "commands", {}):
        command = command.commands[words[1]]
    known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)} | {"--help"}
    assert {word.partition("=")[0] for word in words if word.startswith("--")} - known == set()


def test_the_documents_show_commands():
    assert len(list(command_lines())) > 20


# --- the map and the rules ----------------------------------------------------------------------


def test_the_map_names_every_module_and_no_other():
    rows = table(ROOT / "ARCHITECTURE.md", "module")
    named = {name for row in rows for name in re.findall(r"`([\w/]+\.py)`", row[0])}
    modules = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py")}
    packages = {name for name in modules if name.endswith("/__init__.py")}
    assert named == modules - packages


def test_every_rule_that_the_code_cites_is_explained():
    cited = {
        rule
        for path in SOURCE.rglob("*.py")
        for line in text_of(path).splitlines()
        if "noqa" not in line
        for rule in re.findall(r"\b([CDEKS]\d{1,2}a?)\b", line)
    }
    assert cited
    assert cited == {row[0] for row in table(ROOT / "docs" / "decisions.md", "rule")}


def test_the_architecture_can_be_read_in_one_sitting():
    told, heading, _ = text_of(ROOT / "ARCHITECTURE.md").partition("\n## The map\n")
    assert heading
    assert len(told.encode()) <= ARCHITECTURE_BYTES_MAX, "move reasons to docs/decisions.md"


def test_the_contents_of_the_decisions_are_its_sections():
    path = ROOT / "docs" / "decisions.md"
    sections = re.findall(r"^## (.+)$", prose_of(path), re.MULTILINE)
    assert re.findall(r"^- \[(.+?)\]\(#", prose_of(path), re.MULTILINE) == sections


def has_module(name):
    """Whether a document means an existing file: from the root, in the package, or among the tests."""
    return any((folder / name).is_file() for folder in (ROOT, SOURCE, ROOT / "tests", ROOT / "tests" / "unit"))


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if path.name != "CHANGELOG.md"], ids=name_of)
def test_every_module_that_is_named_by_its_folder_exists(path):
    named = re.findall(r"(?<![\w/])(?:\w+/)+\w+\.py\b", text_of(path))
    assert sorted(name for name in set(named) if not has_module(name)) == []


def test_every_safety_rule_is_kept_where_the_table_says():
    rows = table(ROOT / "docs" / "replication.md", "rule")
    assert [row[0] for row in rows] == [f"C{number}" for number in range(1, 33)]
    for row in rows:
        files = re.split(r"(?=`[\w/]+\.py`)", row[2])[1:]
        assert files or "not needed yet" in row[2], row[0]
        for part in files:
            file, *names = re.findall(r"`([\w/]+(?:\.py)?)`", part)
            source = text_of(SOURCE / file)
            assert [name for name in names if f"def {name}(" not in source] == [], f"{row[0]}: {file}"


def logged_lines():
    """What the brokers log, as patterns."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(text_of(path))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("logger."):
                texts = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
                for text in texts[:1]:
                    parts = re.split(r"%[\w.]+(?:/?%[\w.]+)*", str(text))
                    yield ".*".join(map(re.escape, parts))


def test_every_log_line_that_is_explained_is_logged():
    patterns = list(logged_lines())
    lines = [row[0].strip("`") for row in table(ROOT / "docs" / "cluster.md", "log line")]
    assert [line for line in lines if not any(re.fullmatch(pattern, line) for pattern in patterns)] == []


def test_every_scenario_has_its_place_in_the_document():
    recorded = re.findall(r"^<!-- recorded: (\w+) -->$", text_of(ROOT / "docs" / "failures.md"), re.MULTILINE)
    source = text_of(ROOT / "scripts" / "walk_failures.py")
    assert sorted(recorded) == sorted(re.findall(r"@scenario\ndef (\w+)\(", source))


# --- settings and metrics -----------------------------------------------------------------------


def test_the_example_file_is_a_configuration(tmp_path):
    example = re.search(r"```toml\n(.*?)```", text_of(ROOT / "docs" / "configuration.md"), re.DOTALL)[1]
    file = tmp_path / "stentor.toml"
    file.write_text(example, encoding="utf-8")
    config = load_config({}, {}, file)
    assert {name: getattr(config, name) for name in tomllib.loads(example)} == tomllib.loads(example)


@pytest.mark.parametrize("example", re.findall(r"```toml\n(.*?)```", text_of(ROOT / "docs" / "cluster.md"), re.DOTALL))
def test_the_files_of_a_cluster_are_configurations(example, tmp_path):
    file = tmp_path / "stentor.toml"
    file.write_text(example, encoding="utf-8")
    config = load_config({}, {}, file)
    said = {n: ",".join(said) if isinstance(said, list) else said for n, said in tomllib.loads(example).items()}
    assert {name: getattr(config, name) for name in said} == said


def test_the_table_of_topic_settings_is_complete_and_right():
    text = text_of(ROOT / "docs" / "configuration.md")
    rows = re.findall(r"^\| `(\w+)` \| (\S+) \| .+\|$", text[text.index("## Topic settings") :], re.MULTILINE)
    shown = {name: default.strip('`"') for name, default in rows}
    fields = msgspec.structs.fields(TopicSettings)
    assert shown == {field.name: "none" if field.default is None else str(field.default) for field in fields}


def test_the_table_of_metrics_is_what_a_broker_serves():
    documented = {row[0].strip("`"): row[1] for row in table(ROOT / "docs" / "operating.md", "metric")}
    with broker(http=True) as local, local.client() as client:
        client.publish("orders", "one")
        client.create_topic("jobs", kind="queue")
        with client.subscribe("orders"), urllib.request.urlopen(f"{local.http_url}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
    samples = (re.match(r"(\w+)(?:\{(.*)\})? ", line) for line in lines if not line.startswith("#"))
    served = {sample[1]: ", ".join(sorted(re.findall(r"(\w+)=", sample[2] or ""), reverse=True)) for sample in samples}
    assert documented == served


def test_every_path_of_the_http_table_answers():
    paths = [row[0].strip("`") for row in table(ROOT / "docs" / "operating.md", "path")]
    with broker(http=True) as local:
        for path in paths:
            with urllib.request.urlopen(local.http_url + path, timeout=10) as answer:
                assert answer.status == 200
    assert len(paths) == 6


def test_the_data_directory_looks_as_it_is_drawn(tmp_path):
    with broker(tmp_path / "data", segment_bytes=limits.SEGMENT_BYTES_MIN) as local, local.client() as client:
        for _ in range(3):
            client.publish("orders", b"x" * limits.SEGMENT_BYTES_MIN)
    drawing = re.search(r"```text\n(data/.*?)```", text_of(ROOT / "docs" / "operating.md"), re.DOTALL)[1]
    for path in (tmp_path / "data").rglob("*"):
        shape = path.name if path.parent.name == "data" or path.name == "partitions" else path.suffix
        assert shape in drawing, f"{path.name} is not in the drawing"


def test_make_run_prints_one_line_as_the_readme_says(tmp_path):
    settings = [f"DATA={tmp_path / 'data'}", "ARGS=--port 0 --http-port 0"]
    # The tests themselves are often run by make, which tells those that it starts.
    foreign = {"STENTOR_LOG_LEVEL", "MAKEFLAGS", "MAKELEVEL", "MFLAGS"}
    environment = {name: value for name, value in os.environ.items() if name not in foreign}
    told = subprocess.run(
        ["make", "-n", "run", *settings], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    command = told.stdout.splitlines()[-1]
    ran = subprocess.Popen(
        ["/bin/sh", "-c", command],
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    first = ran.stdout.readline()
    ran.send_signal(signal.SIGTERM)
    rest, _ = ran.communicate(timeout=30)
    assert first.startswith("stentor ready on stentor://127.0.0.1:")
    assert (rest, ran.returncode) == ("", 0)
