import json
import os
import shlex
import signal
import sys

import pytest

import stentor

PYTHON = shlex.quote(sys.executable)
WAIT_S = 30


@pytest.fixture
def serving(shell):
    """A responder as a process of its own."""

    def start(*arguments, **settings):
        process = shell("respond", *arguments, **settings)
        assert process.stdout.readline() == f"serving {arguments[0]}\n".encode(), process.stderr.read()
        return process

    return start


def test_a_request_prints_the_answer(cli, client):
    with client.serve("svc.cli", lambda request: stentor.Reply(request.value.upper(), request.headers)):
        assert cli("request", "svc.cli", "apples") == (0, "APPLES", "")
        assert cli("request", "svc.cli", "-", stdin="pears").out == "PEARS"
        shown = json.loads(cli("request", "svc.cli", "x", "--header", "a=b", "--json").out)
        assert (shown["value"], shown["headers"]) == ("X", {"a": "b"})


def test_parts_of_a_stream_are_printed_one_a_line(cli, client):
    with client.serve("svc.cli-parts", lambda request: (part for part in request.value.decode())):
        assert cli("request", "svc.cli-parts", "abc", "--stream") == (0, "a\nb\nc\n", "")


def test_failures_are_told_in_a_sentence(cli, client):
    nobody = cli("request", "svc.cli-nobody", "x")
    assert (nobody.code, nobody.err.startswith("stentor: Nobody serves svc.cli-nobody.")) == (1, True)

    def fail(_):
        raise ValueError("no apples left")

    with client.serve("svc.cli-fails", fail):
        assert "no apples left" in cli("request", "svc.cli-fails", "x").err
    assert cli("request", "svc.cli", "x", "--header", "nothing").code == 2


def test_a_command_answers_requests_until_it_is_told_to_end(serving, client):
    process = serving("svc.cli-command", "--command", f"{PYTHON} -c 'print(input()[::-1], end=\"\")'")
    assert client.request("svc.cli-command", "abc", timeout=WAIT_S).value == b"cba"
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_S) == 0


def test_a_command_that_fails_is_told_to_the_caller(serving, client):
    serving("svc.cli-broken", "--command", f"{PYTHON} -c 'import sys; sys.exit(\"out of apples\")'")
    with pytest.raises(stentor.HandlerFailed, match="out of apples"):
        client.request("svc.cli-broken", timeout=WAIT_S)


def test_a_function_answers_requests(serving, client, tmp_path):
    (tmp_path / "shop.py").write_text("def price(request):\n    return b'42 ' + request.value\n")
    serving(
        "svc.cli-function",
        "shop:price",
        environment={"PYTHONPATH": os.pathsep.join([str(tmp_path), *map(os.path.abspath, sys.path)])},
    )
    assert client.request("svc.cli-function", "apples", timeout=WAIT_S).value == b"42 apples"


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("json:dumps", "--command", "cat"),
        ("nothing",),
        ("no_such_module:f",),
        ("json:no_such_function",),
        ("json:__name__",),
        ("--command", "'"),
        ("--command", " "),
    ],
)
def test_a_responder_that_cannot_be_is_refused_before_it_serves(cli, arguments):
    refused = cli("respond", "svc.cli-refused", *arguments)
    assert refused.code == 2
    assert refused.err.startswith("stentor: ")
