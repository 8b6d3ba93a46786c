"""What the documents tell people to type about Spark, typed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
WAIT_S = 180


@pytest.fixture
def shop(client):
    client.publish("orders.eu", "hello", key="42")
    yield
    client.delete_topic("orders.eu")


def run(command, directory):
    path = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        command, cwd=directory, env=environment, text=True, capture_output=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.long
def test_the_block_of_the_readme_runs_as_it_stands(shop, tmp_path):
    ((_, code),) = [block for block in BLOCKS if block[0] == "python" and "stentor.spark" in block[1]]
    prints = next(after for before, after in pairwise(BLOCKS) if before[1] == code)[1]
    assert run([sys.executable, "-c", code], tmp_path) == prints


@pytest.mark.long
def test_the_commands_of_the_readme_succeed(shop, tmp_path):
    ((_, lines),) = [block for block in BLOCKS if block[0] == "sh" and block[1].startswith("stentor record ")]
    lines = re.sub(r"^stentor ", f'"{sys.executable}" -m stentor ', lines, flags=re.MULTILINE)
    printed = run(["sh", "-e", "-c", lines], tmp_path)
    assert "recorded 1 message into lake" in printed
    assert re.search(r"^orders\.eu +1$", printed, re.MULTILINE)


@pytest.mark.long
def test_the_example_of_the_tutorial_runs_as_it_stands(tmp_path):
    printed = run([sys.executable, str(ROOT / "examples" / "revenue.py")], tmp_path)
    assert "15 totals, 3000 orders in closed windows" in printed


@pytest.mark.long
def test_the_declarative_example_runs_as_it_stands_and_takes_up_where_it_ended(client, tmp_path, monkeypatch):
    pytest.importorskip("grpc", reason="pip install 'pyspark[pipelines]'")
    shutil.copytree(ROOT / "examples" / "declarative", tmp_path / "declarative")
    spec = tmp_path / "declarative" / "spark-pipeline.yml"
    spec.write_text(spec.read_text(encoding="utf-8").replace("/tmp/stentor-declarative", str(tmp_path)))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    (line,) = re.findall(
        r"^#   spark-pipelines (.*) examples/declarative/", spec.read_text(encoding="utf-8"), re.MULTILINE
    )
    command = [str(Path(sys.executable).with_name("spark-pipelines")), *line.split(), str(spec)]
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)

    def order(minute, customer, amount):
        value = json.dumps({"customer": customer, "amount": amount})
        client.publish("orders", value, timestamp=noon + timedelta(minutes=minute))

    def totals():
        found = [json.loads(message.value) for message in client.read("totals")]
        return sorted((each["minute"][14:16], each["customer"], each["amount"], each["orders"]) for each in found)

    for each in ((0, "ada", 1.5), (0, "ada", 2.0), (0, "bob", 4.0), (1, "ada", 8.0), (9, "eve", 1.0)):
        order(*each)
    client.publish("orders", "no JSON", timestamp=noon)
    try:
        run(command, tmp_path)
        first = [("00", "ada", 3.5, 2), ("00", "bob", 4.0, 1), ("01", "ada", 8.0, 1)]
        assert totals() == first
        order(20, "ada", 1.0)
        run(command, tmp_path)
        assert totals() == [*first, ("09", "eve", 1.0, 1)]
    finally:
        for topic in ("orders", "totals"):
            client.delete_topic(topic)
