import json
import signal
from pathlib import Path

import msgspec
import pytest

from stentor.client.link import BrokerLink
from stentor.errors import EndUnknown
from stentor.testing import broker
from stentor.wire.messages import FindOffset


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


@pytest.mark.parametrize("arguments", [("read", "typo"), ("read", "numbers", "typo"), ("offsets", "typo")])
def test_a_topic_that_does_not_exist_is_told_and_not_made(cli, client, arguments):
    failed = cli(*arguments)
    assert (failed.code, failed.out) == (1, "")
    assert failed.err.startswith("stentor: There is no topic typo.")
    assert client.topics("typo") == []


def test_a_pattern_that_matches_nothing_is_no_failure_but_said(cli):
    assert cli("read", "nothing.*") == (0, "", "stentor: No topic matches 'nothing.*'.\n")


def test_a_read_beyond_the_end_ends_at_what_is_committed_and_says_so(cli, client):
    done = cli("read", "numbers", "--start", "8", "--end", "999")
    assert lines(done) == ["8", "9"]
    assert done.err == "stentor: Offset 999 does not exist yet. The read ends earlier: numbers/0 at 10.\n"
    client.create_topic("uneven", partitions=2)
    for partition, count in enumerate((1, 4)):
        for number in range(count):
            client.publish("uneven", f"{partition}.{number}", partition=partition)
    done = cli("read", "uneven", "--end", "3")
    assert lines(done) == ["0.0", "1.0", "1.1", "1.2"]
    assert "uneven/0 at 1" in done.err
    assert "uneven/1" not in done.err
    assert lines(cli("read", "uneven", "--end", "3", "--count", "2")) == ["0.0", "1.0"]
    assert lines(cli("read", "uneven", "--end", "3", "--partition", "1")) == ["1.0", "1.1", "1.2"]


@pytest.mark.parametrize("command", ["read", "subscribe"])
def test_a_start_beyond_the_end_is_the_same_failure_for_read_and_subscribe(cli, command):
    failed = cli(command, "numbers", "--start", "11", *(("--timeout", "5") if command == "read" else ()))
    assert (failed.code, failed.out) == (1, "")
    assert "numbers/0 holds offsets 0 to 10; 11 was asked for." in failed.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("read", "numbers", "--start", "5", "--end", "2"),
        ("read", "numbers", "--start", "2026-01-31", "--end", "2026-01-30"),
        ("read", "numbers", "--start", "-1h", "--end", "2h ago"),
        ("subscribe", "numbers", "--start", "5", "--end", "2"),
        ("offsets", "numbers.*"),
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


def test_a_subscription_whose_reader_had_enough_ends_though_no_more_messages_come(shell):
    process = shell("subscribe", "numbers", "--start", "earliest")
    assert process.stdout.readline() == b"0\n"
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, b"")


@pytest.mark.parametrize("arguments", [("subscribe", "numbers", "--start", "earliest"), ("read", "numbers")])
def test_a_full_disk_is_a_failure_and_one_sentence(shell, arguments):
    with Path("/dev/full").open("wb") as full:
        process = shell(*arguments, stdout=full)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (1, b"stentor: standard output: No space left on device.\n")


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


@pytest.fixture
def unsure(monkeypatch):
    """The broker is not certain where messages end, and knows of four."""
    request = BrokerLink.request

    async def answer(link, message):
        if not isinstance(message, FindOffset) or message.at == "earliest":
            return await request(link, message)
        if not message.stale:
            raise EndUnknown("A member of the chain does not answer.")
        found = await request(link, message)
        return msgspec.structs.replace(found, offset=min(found.offset, 4), committed=4, sure=False)

    monkeypatch.setattr(BrokerLink, "request", answer)


@pytest.mark.parametrize("command", ["read", "offsets"])
@pytest.mark.usefixtures("unsure")
def test_an_uncertain_end_is_refused_unless_stale_is_allowed(cli, command):
    refused = cli(command, "numbers", "--timeout", "0.5")
    assert (refused.code != 0, refused.out) == (True, "")
    assert "numbers/0" in refused.err
    allowed = cli(command, "numbers", "--stale", "--timeout", "5")
    assert allowed.code == 0
    assert "may be committed" in allowed.err
    assert "".join(allowed.out.split()) == {"read": "0123", "offsets": "PARTITIONOFFSET04"}[command]
