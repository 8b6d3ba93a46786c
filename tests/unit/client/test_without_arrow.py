"""Messages need no pyarrow: neither loaded, nor installed."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import stentor
from stentor.testing import broker

PROGRAM = Path(__file__).with_name("light_client.py")


@pytest.fixture(scope="module")
def local():
    with broker() as started:
        runpy.run_path(str(PROGRAM))["fill"](started.url)
        yield started


def run(code, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, timeout=50
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_client_whose_environment_has_no_pyarrow_publishes_subscribes_and_says_what_it_lacks(local):
    code = (
        "import runpy, sys; sys.modules['pyarrow'] = None; sys.argv = sys.argv[1:];"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    assert run(code, str(PROGRAM), local.url) == ["ok"]


def test_importing_the_clients_loads_nothing_heavy():
    names = "AsyncClient, Client, Message, Producer, Subscription, Topic, connect, connect_async"
    before = set(run("import sys; print(*sys.modules)"))
    added = set(run(f"import sys; from stentor import {names}; print(*sys.modules)")) - before
    others = {name.split(".")[0] for name in added} - set(sys.stdlib_module_names)
    assert others <= {"crc32c", "msgspec", "stentor", "typing_extensions"}


def test_few_messages_do_not_load_it_and_many_do(local):
    """It is loaded beside the work, and everything arrives."""
    code = """
import sys, threading, time
import stentor
from stentor import limits
from stentor.wire import bodies

def loaded():
    for thread in threading.enumerate():
        if thread.name == "stentor-arrow":
            thread.join()
    return "pyarrow" in sys.modules

limits.PLAIN_MESSAGES_MAX, limits.PLAIN_S = 100_000, 3600.0
with stentor.connect(sys.argv[1]) as client:
    with client.producer("few") as producer:
        producer.send_many([b"x"] * 5000)
    print(len(list(client.read("few"))), loaded())
    with client.producer("many", batch_messages=1000) as producer:
        for _ in range(120):
            producer.send_many([b"x"] * 1000)
    print(len(list(client.read("many"))), loaded(), bodies._arrow.__name__)
"""
    assert run(code, local.url) == ["5000", "False", "120000", "True", "stentor.wire.arrow_body"]


def test_a_process_that_goes_on_loads_it_sooner(local):
    code = """
import sys, threading
import stentor
from stentor import limits
from stentor.wire import bodies

limits.PLAIN_S = 0.0
with stentor.connect(sys.argv[1]) as client, client.producer("t", batch_messages=1000) as producer:
    producer.send_many([b"x"] * limits.PLAIN_MESSAGES_MIN)
    producer.flush()
    print(bodies._loading)
    producer.send_many([b"x"] * 1000)
    producer.flush()
    print(bodies._loading)
"""
    assert run(code, local.url) == ["False", "True"]


def test_a_missing_package_is_an_import_error_and_a_wrong_call():
    error = stentor.MissingPackage("x", hint="pip install y")
    assert isinstance(error, ImportError)
    assert isinstance(error, stentor.InvalidArgument)
    assert str(error) == "x pip install y"
