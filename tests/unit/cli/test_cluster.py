import io
import json

import pytest

from stentor import PartitionInfo
from stentor.cli import cluster_status
from stentor.cli.app import run
from stentor.wire.statistics import from_map

STATUS = {
    "url": "stentor://127.0.0.1:1,127.0.0.1:2",
    "brokers": [
        {"name": "b0", "pid": 10, "state": "ready", "controller": True, "zone": "east", "address": "127.0.0.1:1"},
        {"name": "b1", "pid": None, "state": "dead", "controller": False, "zone": "", "address": "127.0.0.1:2"},
    ],
    "etcd": [{"name": "etcd-0", "pid": 12, "state": "running", "address": "127.0.0.1:3"}],
    "haproxy": [],
    "cuts": [["b0", "b1"]],
    "partitions": [
        {
            "topic": "orders",
            "partition": 0,
            "chain": ["b0", "b1"],
            "others": ["b2"],
            "epoch": 7,
            "committed": 12,
            "end": 15,
            "lag": {"b0": 0, "b1": None, "b2": 3},
        }
    ],
}


@pytest.mark.parametrize("command", ["status", "heal", "add", "down"])
def test_without_a_cluster_there_is_one_sentence_that_says_how_to_start_one(command, capsys, tmp_path):
    assert run(["cluster", command, "--data", str(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert f"No cluster runs in {tmp_path}. Start one with `stentor cluster up --data {tmp_path}`" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["up", "--haproxy", "--no-http"], "HAProxy asks brokers over HTTP"),
        (["up", "--brokers", "0"], "--brokers"),
        (["kill"], "NAME"),
        (["explode"], "explode"),
    ],
)
def test_a_wrong_command_line_is_one_sentence_and_exit_code_2(arguments, sentence, capsys):
    assert run(["cluster", *arguments]) == 2
    err = capsys.readouterr().err
    assert sentence in err
    assert err.count("\n") == 1


def test_what_etcd_refuses_is_told_by_the_command_that_started_it(capsys, tmp_path):
    assert run(["cluster", "up", "--etcd", "2", "--data", str(tmp_path)]) == 2
    assert capsys.readouterr().err == "stentor: A local etcd has one member or three, not 2.\n"


def test_a_state_file_that_is_none_is_named(capsys, tmp_path):
    (tmp_path / "cluster.json").write_text("{")
    assert run(["cluster", "status", "--data", str(tmp_path)]) == 2
    assert "is not the state of a cluster" in capsys.readouterr().err


def test_a_supervisor_that_is_gone_is_told_from_a_cluster_that_never_was(capsys, tmp_path):
    state = {"pid": 2**22 + 1, "control": str(tmp_path / "none" / "control"), "data": str(tmp_path), "network": False}
    (tmp_path / "cluster.json").write_text(json.dumps({**state, "brokers": [], "etcd": [], "haproxy": []}))
    assert run(["cluster", "heal", "--data", str(tmp_path)]) == 1
    assert "is gone. `stentor cluster down" in capsys.readouterr().err
    assert run(["cluster", "down", "--data", str(tmp_path)]) == 0
    assert not (tmp_path / "cluster.json").exists()


def test_plain_status_has_a_line_for_each_process_and_partition():
    lines = cluster_status.lines(STATUS)
    assert lines[:2] == ["url  stentor://127.0.0.1:1,127.0.0.1:2", "cut  b0 -> b1"]
    assert [line.split()[:3] for line in lines if line.startswith("b")][1:] == [
        ["b0", "10", "ready"],
        ["b1", "-", "dead"],
    ]
    assert lines[-1].split() == ["orders/0", "b0→b1", "+b2", "7", "12", "b0:0", "b1:?", "b2:3"]


def test_the_live_picture_shows_the_same():
    from rich.console import Console

    console = Console(width=160, file=io.StringIO())
    console.print(cluster_status.picture(STATUS))
    shown = console.file.getvalue()
    assert all(word in shown for word in ("b0→b1 +b2", "controller", "east", "dead", "etcd-0"))


def test_lag_is_counted_from_the_end_of_the_log_to_the_disk_of_each_member():
    def answer(end, durable, committed):
        replica = {"end": end, "durable": durable, "committed": committed}
        return from_map({"partitions": [{"topic": "orders", "partition": 1, "replica": replica}]})

    answers = {"b0": answer(20, 20, 10), "b1": answer(15, 12, 12), "b3": answer(5, 5, 5)}
    info = PartitionInfo(partition=1, epoch=3, chain=["b0", "b1", "b2"], committed=11, end=19)
    found = cluster_status._partition("orders", info, answers)
    assert found["lag"] == {"b0": 0, "b1": 8, "b2": None, "b3": 15}
    assert (found["committed"], found["end"], found["others"]) == (12, 20, ["b3"])
