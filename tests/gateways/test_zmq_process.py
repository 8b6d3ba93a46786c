"""A gateway as a process: run by itself, and as the child of a broker."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq
from tests.gateways.chp_client import ChpClient
from tests.gateways.conftest import free_port_run

from stentor import connect
from stentor.errors import InvalidArgument
from stentor.testing import broker


@contextmanager
def started(*arguments, ready):
    """A `stentor` command that says it is ready, and is stopped at the end."""
    command = [sys.executable, "-m", "stentor", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            assert ready in line, process.stderr.read()
            yield process, line
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=20)


def children_of(pid):
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(word) for word in found.stdout.split()]


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def change_is_made(port):
    """Seen in a snapshot: for some seconds a new gateway publishes nothing."""
    with ChpClient(port, publish_with=zmq.PUSH) as client:
        client.kvset(b"/key", b"value")
        deadline = time.monotonic() + 15
        while not any(said.key == b"/key" and said.value == b"value" for said in client.icanhaz()[0]):
            assert time.monotonic() < deadline


def test_a_gateway_by_itself_serves_and_stops(shared):
    port = free_port_run()
    arguments = ["gateway", "zmq", "--url", shared.url, "--port", str(port), "--table", "alone", "--topic", "orders"]
    with started(*arguments, ready="zmq gateway ready") as (process, line):
        assert line == f"stentor zmq gateway ready on tcp://127.0.0.1:{port}  table alone, topic orders\n"
        change_is_made(port)
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0


def test_a_gateway_that_serves_nothing_says_so(shared):
    done = subprocess.run(
        [sys.executable, "-m", "stentor", "gateway", "zmq", "--url", shared.url],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode != 0
    assert "needs a table or a topic" in done.stderr
    assert "Traceback" not in done.stderr


@contextmanager
def broker_with_gateway(tmp_path, port):
    arguments = ["serve", "--data", str(tmp_path / "data"), "--port", "0", "--no-http", "--zmq-port", str(port)]
    with started(*arguments, "--zmq-table", "config", ready="stentor ready") as (process, line):
        yield process, line.split()[3]


@pytest.mark.slow
def test_a_broker_starts_a_gateway_starts_it_again_and_stops_it(tmp_path, wait_until):
    port = free_port_run()
    with broker_with_gateway(tmp_path, port) as (process, url):
        change_is_made(port)
        with connect(url) as client, client.table("config") as table:
            wait_until(lambda: table.get("key") == b"value")
        (child,) = children_of(process.pid)
        assert Path(f"/proc/{child}/oom_score_adj").read_text(encoding="ascii").strip() == "1000"
        os.kill(child, signal.SIGKILL)
        wait_until(lambda: children_of(process.pid) not in ([], [child]), "another gateway")
        change_is_made(port)
        (child,) = children_of(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert not is_running(child)


@pytest.mark.slow
def test_a_gateway_ends_with_a_broker_that_is_killed(tmp_path, wait_until):
    port = free_port_run()
    with broker_with_gateway(tmp_path, port) as (process, _):
        change_is_made(port)
        (child,) = children_of(process.pid)
        process.kill()
        wait_until(lambda: not is_running(child), "the end of the gateway")


def test_a_broker_in_a_thread_can_have_a_gateway_too():
    port = free_port_run()
    with broker(zmq_port=port, zmq_table="config"):
        change_is_made(port)


def test_a_broker_with_a_gateway_that_would_serve_nothing_does_not_start():
    with pytest.raises(InvalidArgument, match="needs a table or a topic"), broker(zmq_port=free_port_run()):
        pass


def test_without_pyzmq_one_sentence_says_what_to_install():
    program = (
        "import importlib.util as util, sys\n"
        "found = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'zmq' else found(name, *rest)\n"
        "from stentor.cli.app import run\n"
        "sys.exit(run(['gateway', 'zmq', '--table', 'config']))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert done.stderr == "stentor: The ZeroMQ gateway needs pyzmq, which is not installed. pip install 'pyzmq>=26'\n"
