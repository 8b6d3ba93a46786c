import json

import pytest

from stentor.limits import MESSAGE_VALUE_BYTES_MAX


def values_of(client, topic):
    return [message.value for message in client.read(topic)]


def test_an_argument_is_published_with_key_and_headers_and_its_place_is_printed(cli, client):
    done = cli("publish", "pub.one", "hello", "--key", "42", "--header", "source=shop", "--header", "n=")
    assert done == (0, "pub.one partition 0 offset 0\n", "")
    [message] = client.read("pub.one")
    assert (message.value, message.key) == (b"hello", b"42")
    assert message.headers == [("source", b"shop"), ("n", b"")]


def test_several_arguments_are_published_in_order(cli, client):
    assert cli("publish", "pub.several", "a", "b", "--quiet") == (0, "", "")
    assert values_of(client, "pub.several") == [b"a", b"b"]


def test_lines_of_standard_input_are_published(cli, client):
    done = cli("publish", "pub.lines", "--key", "k", stdin=b"one\n\xff\x00\nthree")
    assert done.code == 0, done.err
    assert done.out.startswith("published 3 messages to pub.lines (")
    assert values_of(client, "pub.lines") == [b"one", b"\xff\x00", b"three"]


def test_files_are_published_line_by_line_or_whole(cli, client, tmp_path):
    file = tmp_path / "lines.txt"
    file.write_bytes(b"a\nb\n")
    assert cli("publish", "pub.file", "--file", str(file)).code == 0
    assert cli("publish", "pub.file", "--file", str(file), "--whole").code == 0
    assert values_of(client, "pub.file") == [b"a", b"b", b"a\nb\n"]


def test_json_carries_key_headers_and_time(cli, client):
    line = '{"key": "k", "value": "v", "headers": {"h": "1"}, "timestamp": "2026-01-31T12:00:00Z"}'
    done = cli("publish", "pub.json", "--json", stdin=line)
    assert json.loads(done.out)["messages"] == 1
    [message] = client.read("pub.json")
    assert (message.key, message.value, message.headers) == (b"k", b"v", [("h", b"1")])
    assert message.timestamp.isoformat() == "2026-01-31T12:00:00+00:00"


def test_a_partition_can_be_chosen(cli, client):
    client.create_topic("pub.partitions", partitions=3)
    assert "partition 2 offset 0" in cli("publish", "pub.partitions", "x", "--partition", "2").out
    assert cli("publish", "pub.partitions", "--partition", "1", stdin="y\n").code == 0
    assert client.offsets("pub.partitions") == {0: 0, 1: 1, 2: 1}


@pytest.mark.parametrize("ack", ["none", "head", "quorum", "all"])
def test_every_ack_level_is_accepted(cli, ack):
    assert cli("publish", f"pub.ack.{ack}", "--ack", ack, stdin="x\n").code == 0


def test_many_lines_all_arrive_in_order(cli, client):
    lines = [b"%d" % number for number in range(20_000)]
    assert cli("publish", "pub.many", "--compression", "lz4", stdin=b"\n".join(lines)).code == 0
    assert values_of(client, "pub.many") == lines


def test_a_topic_is_copied_through_a_pipe_of_json(cli, client):
    client.publish("copy.from", bytes(range(256)), key=b"\xff", headers=[("a", b"\x00\xff"), ("a", "2")])
    client.publish("copy.from", None, key="gone")
    assert cli("publish", "copy.to", "--json", stdin=cli("read", "copy.from", "--json").out).code == 0
    copied = [(m.key, m.value, m.headers, m.timestamp) for m in client.read("copy.to")]
    assert copied == [(m.key, m.value, m.headers, m.timestamp) for m in client.read("copy.from")]


@pytest.mark.parametrize(
    ("arguments", "stdin"),
    [
        (("publish", "pub.bad", "x", "--header", "novalue"), ""),
        (("publish", "pub.bad", "x", "--ack", "maybe"), ""),
        (("publish", "pub.bad", "x", "--file", "y"), ""),
        (("publish", "pub.bad", "--whole"), ""),
        (("publish", "pub.bad", "--file", "/no/such/file"), ""),
        (("publish", "pub.bad", "--compression", "rar"), "x"),
        (("publish", "pub bad", "x"), ""),
        (("publish", "orders.*", "x"), ""),
        (("publish", "pub.bad", "--json"), "not json"),
    ],
)
def test_a_wrong_call_is_one_sentence_and_exit_code_2(cli, arguments, stdin):
    failed = cli(*arguments, stdin=stdin)
    assert failed.err.startswith("stentor: ")
    assert failed.err.count("\n") == 1
    assert failed.code == 2, failed.err


def test_a_partition_that_is_not_there_is_one_sentence(cli):
    failed = cli("publish", "pub.nowhere", "x", "--partition", "7")
    assert failed.code in {1, 2}
    assert failed.err.startswith("stentor: ")
    assert failed.err.count("\n") == 1


def test_a_whole_file_that_is_too_large_is_named_with_its_size_and_the_limit(cli, client, tmp_path):
    file = tmp_path / "big.bin"
    file.write_bytes(bytes(MESSAGE_VALUE_BYTES_MAX + 1))
    failed = cli("publish", "pub.whole", "--file", str(file), "--whole")
    assert failed.code == 1
    assert failed.err.startswith(f"stentor: {file} has 8,388,609 bytes; one message has at most 8,388,608.")
    assert failed.err.count("\n") == 1
    file.write_bytes(bytes(MESSAGE_VALUE_BYTES_MAX))
    assert cli("publish", "pub.whole", "--file", str(file), "--whole").code == 0


def test_a_whole_input_that_is_too_large_is_named_though_its_size_is_not_known(cli):
    failed = cli("publish", "pub.whole", "--file", "-", "--whole", stdin=bytes(MESSAGE_VALUE_BYTES_MAX + 1))
    assert failed.code == 1
    assert "standard input has more than 8,388,608 bytes; one message has at most 8,388,608." in failed.err
