import json
import signal

import pytest

from stentor.testing import broker


@pytest.fixture(scope="module", autouse=True)
def filled(running_broker):
    with running_broker.client() as client, client.producer("numbers") as producer:
        for number in range(10):
            producer.send(str(number), key=f"k{number}")


def lines(outcome):
    assert outcome.code == 0, outcome.err
    return outcome.out.splitlines()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "0123456789"),
        (("--start", "7"), "789"),
        (("--start", "2", "--end", "5"), "234"),
        (("--start", "last:2"), "89"),
        (("--start", "-1h"), "0123456789"),
        (("--start", "1h ago", "--count", "2"), "01"),
        (("--end", "-1h"), ""),
        (("--start", "2000-01-01", "--end", "earliest"), ""),
        (("--start", "latest"), ""),
        (("--partition", "0", "--count", "1"), "0"),
    ],
)
def test_read_prints_what_is_between_two_positions(cli, arguments, expected):
    assert "".join(lines(cli("read", "numbers", *arguments))) == expected


def test_read_shows_keys_when_asked(cli):
    assert lines(cli("read", "numbers", "--key", "--count", "1")) == ["k0\t0"]


def test_read_prints_json_and_tables(cli):
    [found] = map(json.loads, lines(cli("read", "numbers", "--json", "--start", "3", "--count", "1")))
    assert (found["topic"], found["offset"], found["key"], found["value"]) == ("numbers", 3, "k3", "3")
    heading, line = lines(cli("read", "numbers", "--format", "table", "--start", "3", "--count", "1"))
    assert heading.split() == ["TIME", "TOPIC", "PARTITION", "OFFSET", "KEY", "VALUE"]
    assert line.split()[1:] == ["numbers", "0", "3", "k3", "3"]


def test_subscribe_ends_after_a_count(cli):
    assert lines(cli("subscribe", "numbers", "--start", "earliest", "--count", "3")) == ["0", "1", "2"]


def test_subscribe_ends_at_its_end(cli):
    assert lines(cli("subscribe", "numbers", "--start", "8", "--end", "now")) == ["8", "9"]


def test_subscribe_ends_when_it_is_idle(cli):
    assert lines(cli("subscribe", "numbers", "--start", "8", "--idle", "0.2")) == ["8", "9"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("read", "numbers", "--start", "soon"),
        ("read", "numbers", "--format", "xml"),
        ("read", "bad..name"),
        ("subscribe", "numbers", "--max-lag", "much"),
        ("subscribe", "numbers", "--on-slow", "panic"),
        ("subscribe", "numbers", "--on-slow", "skip"),
        ("offsets", "numbers", "--at", "soon"),
    ],
)
def test_a_wrong_call_is_one_sentence_and_exit_code_2(cli, arguments):
    failed = cli(*arguments)
    assert failed.err.startswith("stentor: ")
    assert failed.err.count("\n") == 1
    assert failed.code == 2, failed.err


def test_offsets_are_a_table_or_json(cli):
    assert [line.split() for line in lines(cli("offsets", "numbers"))] == [["PARTITION", "OFFSET"], ["0", "10"]]
    assert json.loads(cli("offsets", "numbers", "--at", "earliest", "--json").out) == {"0": 0}


def test_ctrl_c_ends_subscribe_cleanly_and_nothing_printed_is_lost(shell):
    process = shell("subscribe", "numbers", "--start", "earliest")
    seen = [process.stdout.readline() for _ in range(10)]
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=30)
    assert seen == [b"%d\n" % number for number in range(10)]
    assert (process.returncode, rest, err) == (130, b"", b"")


def test_live_messages_are_printed_at_once(shell, client):
    process = shell("subscribe", "live.*", "--start", "earliest")
    client.create_topic("live.now")
    client.publish("live.now", "hello")
    assert process.stdout.readline() == b"hello\n"


def test_a_reader_that_had_enough_is_no_error(shell, client):
    with client.producer("pipe") as producer:
        for _ in range(20_000):
            producer.send(b"x" * 100)
    process = shell("read", "pipe")
    assert process.stdout.readline() == b"x" * 100 + b"\n"
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, b"")


def test_a_read_whose_broker_dies_ends_with_a_sentence(shell, tmp_path):
    with broker() as doomed:
        with doomed.client() as client, client.producer("t") as producer:
            for _ in range(200_000):
                producer.send(b"x" * 100)
        # The pipe fills up, so the read is still going on when the broker is gone.
        process = shell("read", "t", "--timeout", "2", environment={"STENTOR_URL": doomed.url})
        assert process.stdout.readline()
        doomed.stop()
        _, err = process.communicate(timeout=50)
    assert process.returncode == 1
    assert err.startswith(b"stentor: ")
    assert err.count(b"\n") == 1
