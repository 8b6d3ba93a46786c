"""`stentor cluster` on real processes: each test leaves the cluster as the next one needs it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import stentor
from stentor.cli.app import run
from stentor.testing.network import why_no_network

pytestmark = pytest.mark.timeout(120)

HAS_NETWORK = not why_no_network()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("cluster") / "data"


@pytest.fixture(scope="module")
def announced(data):
    """What `up` printed; the cluster runs until the end of the module."""
    arguments = ["up", "--brokers", "3", "--zones", "east,west", "--detach", *(["--network"] if HAS_NETWORK else [])]
    yield in_a_process(*arguments, data=data)
    run(["cluster", "down", "--data", str(data)])


def in_a_process(*arguments, data):
    command = [sys.executable, "-m", "stentor", "cluster", *arguments, "--data", str(data)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def cluster(announced, data, capsys):
    """Runs a `stentor cluster` command line on it: (exit code, output, complaint)."""

    def call(*arguments):
        capsys.readouterr()
        code = run(["cluster", *arguments, "--data", str(data)])
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def status(cluster):
    def look():
        code, out, err = cluster("status", "--json")
        assert code == 0, err
        return json.loads(out)

    return look


def state_of(status, name):
    return next(each["state"] for kind in ("brokers", "etcd") for each in status[kind] if each["name"] == name)


def chain_of(status, topic="orders"):
    return next((each["chain"] for each in status["partitions"] if each["topic"] == topic), [])


def test_up_says_where_it_is_and_how_to_stop_it(announced, data, status):
    first, *others = announced.splitlines()
    state = status()
    assert first == f"stentor cluster ready on {state['url']}"
    assert [line.split()[0] for line in others[:4]] == ["b0", "b1", "b2", "etcd-0"]
    assert all(f"pid {each['pid']}" in announced for each in state["brokers"])
    assert f"stentor cluster down --data {data}" in announced


def test_status_shows_brokers_and_partitions(cluster, status, wait_until):
    with stentor.connect(status()["url"]) as client:
        client.publish("orders", "one")
    state = wait_until(lambda: len(chain_of(found := status())) == 3 and found, "a chain of three")
    assert [broker["zone"] for broker in state["brokers"]] == ["east", "west", "east"]
    assert sum(broker["controller"] for broker in state["brokers"]) == 1
    [orders] = state["partitions"]
    assert (orders["committed"], set(orders["lag"].values())) == (1, {0})
    code, out, _ = cluster("status", "--once")
    assert code == 0
    assert "→".join(orders["chain"]) in out
    assert "etcd-0" in out


def test_a_killed_broker_is_replaced_in_its_chains_and_comes_back(cluster, status, wait_until):
    head = chain_of(status())[0]
    assert cluster("kill", head) == (0, f"{head} is dead\n", "")
    assert state_of(status(), head) == "dead"
    code, _, complaint = cluster("pause", head)
    assert (code, complaint) == (2, f"stentor: {head} is not running. `stentor cluster restart {head}` starts it.\n")
    with stentor.connect(status()["url"]) as client:
        client.publish("orders", "two")
    assert cluster("restart", head)[0] == 0
    wait_until(lambda: len(chain_of(status())) == 3, "a chain of three")


def test_a_paused_process_stands_still_until_it_is_resumed(cluster, status, wait_until):
    for name in ("b1", "etcd-0"):
        assert cluster("pause", name)[0] == 0
        assert state_of(status(), name) == "paused"
        assert cluster("resume", name)[0] == 0
        assert state_of(status(), name) != "paused"
    wait_until(lambda: len(chain_of(status())) == 3, "a chain of three")


@pytest.mark.skipif(not HAS_NETWORK, reason="cutting links needs root, ip and iptables")
def test_links_are_cut_and_healed(cluster, status, wait_until):
    assert cluster("cut", "b0", "b1", "--one-way") == (0, "cut b0 -> b1\n", "")
    assert status()["cuts"] == [["b0", "b1"]]
    assert cluster("cut", "b0", "b1") == (0, "cut b0 <-> b1\n", "")
    assert cluster("heal")[0] == 0
    assert status()["cuts"] == []
    code, _, complaint = cluster("cut", "b0", "etcd-0")
    assert (code, complaint.count("\n")) == (2, 1)


def test_one_more_broker_takes_over_from_one_that_is_drained(cluster, status, wait_until):
    wait_until(lambda: len(chain_of(status())) == 3, "a chain of three")
    assert cluster("add") == (0, "b3 runs\n", "")
    assert cluster("drain", "b0") == (0, "b0 is being drained\n", "")
    wait_until(lambda: set(chain_of(status())) == {"b1", "b2", "b3"}, "b0 to be drained", seconds=30)
    assert cluster("drain", "b0", "--undo")[0] == 0
    assert cluster("drain", "etcd-0")[0] == 2


def test_what_cannot_be_done_is_one_sentence(cluster, data):
    code, out, complaint = cluster("kill", "b9")
    assert (code, out) == (2, "")
    assert complaint == "stentor: There is no 'b9' in this cluster, only b0, b1, b2, b3, etcd-0.\n"
    code, _, complaint = cluster("up")
    assert code == 2
    assert "runs in" in complaint
    assert complaint.count("\n") == 1


def test_names_are_completed(announced, data):
    words = f"stentor cluster kill --data {data} e"
    done = subprocess.run(
        [sys.executable, "-c", "from stentor.cli import main; main()"],
        env={"_STENTOR_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": "5"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["etcd-0"]


def test_down_also_ends_what_a_killed_supervisor_left_behind(cluster, status, wait_until):
    state = status()
    os.kill(state["pid"], signal.SIGKILL)
    wait_until(lambda: not is_there(state["pid"]), "the supervisor's end")
    code, _, complaint = cluster("status")
    assert code == 1
    assert "is gone" in complaint
    assert cluster("down")[0] == 0
    wait_until(lambda: not any(is_there(broker["pid"]) for broker in state["brokers"]), "the brokers' end")


def is_there(pid):
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


@pytest.mark.long
def test_a_cluster_in_the_foreground_goes_on_with_its_data_and_ends_with_its_terminal(data, announced, wait_until):
    command = [sys.executable, "-m", "stentor", "cluster", "up", "--data", str(data)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        url = process.stdout.readline().split()[-1]
        state = json.loads((data / "cluster.json").read_text())
        assert [broker["name"] for broker in state["brokers"]] == ["b0", "b1", "b2", "b3"]
        with stentor.connect(url) as client:
            assert [message.value for message in client.read("orders")] == [b"one", b"two"]
    finally:
        process.kill()
        process.communicate()
    wait_until(lambda: not any(is_there(broker["pid"]) for broker in state["brokers"]), "the brokers' end", seconds=30)
    wait_until(lambda: not (data / "cluster.json").exists(), "the end of the state file")
