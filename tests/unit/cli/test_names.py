import json
import signal
import threading

import pytest


@pytest.fixture(autouse=True)
def no_names(client):
    yield
    for name in client.names.resolve_all():
        client.names.unregister(name)


def test_a_name_that_stays_is_resolved_listed_and_removed(cli):
    assert cli("names", "register", "db/1", "10.0.0.9:5432", "--stay") == (0, "db/1 is at 10.0.0.9:5432\n", "")
    assert cli("names", "resolve", "db") == (0, "10.0.0.9:5432\n", "")
    assert cli("names", "list").out.splitlines() == ["NAME  ADDRESS", "db/1  10.0.0.9:5432"]
    assert json.loads(cli("names", "list", "db", "--json").out) == {"db/1": "10.0.0.9:5432"}
    assert cli("names", "unregister", "db/1") == (0, "", "")
    refused = cli("names", "resolve", "db")
    assert refused == (
        1,
        "",
        "stentor: No service is registered as db. `stentor names list` shows all there are; --wait waits for it.\n",
    )


def test_a_name_is_there_as_long_as_the_command_runs(shell, client):
    with client.names.watch("billing") as watch:
        process = shell("names", "register", "billing/1", "10.0.0.5:80")
        assert watch.get(timeout=20).new == "10.0.0.5:80"
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        gone = watch.get(timeout=20)
        assert (gone.new, gone.expired) == (None, False)


@pytest.fixture
def changing(client):
    """Somebody comes, moves and goes, again and again."""
    stop = threading.Event()

    def change():
        while not stop.is_set():
            client.names.register("s/1", "a")
            client.names.register("s/1", "b")
            client.names.unregister("s/1")

    thread = threading.Thread(target=change)
    thread.start()
    yield
    stop.set()
    thread.join()


def test_watch_prints_who_comes_moves_and_goes(cli, changing):
    code, out, err = cli("names", "watch", "s", "--count", "6")
    assert (code, err) == (0, "")
    assert set(out.splitlines()) == {"here  s/1  a", "moved  s/1  b", "gone  s/1"}


def test_watch_prints_lines_of_json(cli, changing):
    seen = [json.loads(line) for line in cli("names", "watch", "--json", "--count", "3").out.splitlines()]
    assert {"name": "s/1", "old": "a", "new": "b", "expired": False} in seen


def test_watch_stops_when_nothing_happens(cli):
    assert cli("names", "watch", "nobody", "--idle", "0.01") == (0, "", "")


def test_what_is_no_name_is_refused_in_one_sentence(cli):
    refused = cli("names", "register", "/a", "x")
    assert refused.code == 2
    assert refused.err == (
        "stentor: '/a' is no name of a service. Use a path such as billing/1: words with slashes between.\n"
    )
