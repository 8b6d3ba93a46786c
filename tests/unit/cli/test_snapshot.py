"""`stentor snapshot`: a table at one sequence, as a file."""

from __future__ import annotations

import csv
import json
from unittest.mock import Mock

import pyarrow.parquet as pq
import pytest

from stentor.cli import snapshot_files
from stentor.client.table_snapshot import TableSnapshot
from stentor.errors import TopicNotFound


@pytest.fixture
def prices(client):
    client.create_topic("prices", kind="table", partitions=2)
    with client.table("prices") as table:
        for number in range(50):
            table.put(f"fruit/{number % 10}", f"{number}")
        for number in range(3):
            table.delete(f"fruit/{number}")
        table.put("title", "Obst €")
        yield table
    client.delete_topic("prices")


def entries(table, subtree=""):
    return sorted((entry.key, entry.value, entry.version) for entry in table.entries(subtree))


def rows_of(path):
    return sorted((row["key"], row["value"], row["version"]) for row in pq.read_table(path).to_pylist())


def test_parquet_has_the_rows_of_a_copy_and_the_sequence(cli, prices, tmp_path):
    out = tmp_path / "prices.parquet"
    done = cli("snapshot", "prices", "--out", out)
    told = ",".join(map(str, prices.sequence))
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"8 keys of prices at sequence {told} in {out}, ")
    assert rows_of(out) == entries(prices)
    metadata = pq.read_schema(out).metadata
    assert metadata[b"stentor.table"] == b"prices"
    assert metadata[b"stentor.sequence"] == told.encode()
    assert [path.name for path in tmp_path.iterdir()] == ["prices.parquet"]


def test_an_earlier_sequence_has_what_was_there_then(cli, prices, tmp_path):
    before, sequence = entries(prices), prices.sequence
    prices.put("title", "later")
    prices.delete("fruit/7")
    out = tmp_path / "before.parquet"
    assert cli("snapshot", "prices", "--out", out, "--sequence", ",".join(map(str, sequence))).code == 0
    assert rows_of(out) == before
    done = cli("snapshot", "prices", "--out", out, "--subtree", "fruit/", "--json")
    assert json.loads(done.out)["sequence"] == list(prices.sequence)
    assert json.loads(done.out)["keys"] == 6
    assert rows_of(out) == entries(prices, "fruit/")


def test_csv_and_json_hold_the_same(cli, client, prices, tmp_path):
    assert cli("snapshot", "prices", "--out", tmp_path / "prices.csv").code == 0
    with (tmp_path / "prices.csv").open(newline="") as file:
        found = sorted((row["key"], row["value"].encode(), int(row["version"])) for row in csv.DictReader(file))
    assert found == entries(prices)
    assert cli("snapshot", "prices", "--out", tmp_path / "prices.txt", "--format", "json").code == 0
    client.create_topic("loaded", kind="table")
    assert cli("table", "load", "loaded", str(tmp_path / "prices.txt")).code == 0
    with client.table("loaded") as loaded:
        assert dict(loaded.items()) == dict(prices.items())
    client.delete_topic("loaded")


def test_an_empty_table_is_an_empty_file(cli, client, tmp_path):
    client.create_topic("empty", kind="table")
    for suffix in ("parquet", "csv", "json"):
        assert cli("snapshot", "empty", "--out", tmp_path / f"empty.{suffix}").out.startswith("0 keys of empty")
    assert pq.read_table(tmp_path / "empty.parquet").num_rows == 0
    client.delete_topic("empty")


def test_what_is_no_text_is_not_written_as_csv_and_an_earlier_file_stays(cli, prices, tmp_path):
    out = tmp_path / "prices.csv"
    out.write_text("earlier")
    prices.put("web", b"\xff\x00")
    refused = cli("snapshot", "prices", "--out", out)
    assert refused == (
        2,
        "",
        "stentor: The value of web is no text, and CSV holds nothing else. Write Parquet or JSON.\n",
    )
    assert out.read_text() == "earlier"
    assert [path.name for path in tmp_path.iterdir()] == ["prices.csv"]


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["nobody", "--out", "a.csv"], 1, "There is no table nobody. Make it with `stentor table create nobody`"),
        (["plain", "--out", "a.csv"], 2, "Topic plain is no table. `stentor topic list` shows the kinds."),
        (["prices", "--out", "a.xls"], 2, "a.xls does not say by its suffix what it shall hold. Call it .parquet,"),
        (["prices", "--out", "a", "--format", "xls"], 2, "--format 'xls' is unknown. Use parquet, csv or json."),
        (["prices", "--out", "a.csv", "--sequence", "now"], 2, "--sequence 'now' is not a sequence. Write the"),
        (["prices", "--out", "a.csv", "--sequence", "1"], 2, "Table prices has 2 partitions; the sequence has 1."),
        (["prices", "--out", "a.csv", "--sequence", "0,999"], 1, "prices/1 holds offsets 0 to "),
        (["prices", "--out", "a.csv", "--subtree", "x"], 2, "'x' is no subtree"),
        (["prices", "--out", "no/such/folder/a.csv"], 1, "No such file or directory."),
    ],
)
def test_mistakes_are_one_sentence(cli, client, prices, tmp_path, monkeypatch, arguments, code, sentence):
    monkeypatch.chdir(tmp_path)
    client.create_topic("plain", exist_ok=True)
    done = cli("snapshot", *arguments)
    assert (done.code, done.out) == (code, "")
    assert sentence in done.err
    assert done.err.count("\n") == 1
    assert prices.name not in [path.name for path in tmp_path.iterdir()]


def test_a_table_that_was_made_anew_meanwhile_is_noticed(client, prices, tmp_path):
    taken = TableSnapshot(client, "prices")
    client.delete_topic("prices")
    client.create_topic("prices", kind="table", partitions=2)
    with pytest.raises(TopicNotFound, match="Table prices was deleted and created again while"):
        snapshot_files.write_file(tmp_path / "a.parquet", "parquet", taken.batches(), {})
    assert not list(tmp_path.iterdir())


def test_progress_is_told_up_to_the_end(client, prices):
    tell, taken = Mock(), TableSnapshot(client, "prices")
    list(taken.batches(tell))
    done = [call.args[0] for call in tell.call_args_list]
    assert done == sorted(done)
    assert done[-1] == taken.changes == sum(prices.sequence)
