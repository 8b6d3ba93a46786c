import io

import pytest

from stentor import InvalidArgument, LimitExceeded
from stentor.cli import publish_input as feed
from stentor.cli.publish_input import PublishInput, Sending, open_feed, parse_entry


class Recorder:
    """A producer that remembers."""

    def __init__(self):
        self.sent = []

    def send(self, value, key=None, *, headers=None, timestamp=None, partition=None):
        self.sent.append((value, key, headers, timestamp, partition))

    def send_many(self, values, keys=None, *, partition=None):
        for value, key in zip(values, keys or [None] * len(values), strict=True):
            self.sent.append((value, key, None, None, partition))


def sending(**changes):
    settings = {"topic": "t", "key": None, "headers": [], "partition": None, "as_json": False, "whole": False}
    return Sending(**{**settings, **changes})


def sent_from(data: bytes, **changes):
    stream = io.BufferedReader(io.BytesIO(data))
    recorder = Recorder()
    found = PublishInput([("standard input", stream)], None, sending(**changes))
    list(found.send_through(recorder))
    return recorder.sent, found


@pytest.mark.parametrize(
    ("data", "values"),
    [
        (b"", []),
        (b"a", [b"a"]),
        (b"a\n", [b"a"]),
        (b"a\nb", [b"a", b"b"]),
        (b"a\n\nb\n", [b"a", b"", b"b"]),
        (b"\x00\xff\r\n", [b"\x00\xff\r"]),
    ],
)
def test_each_line_is_a_message_byte_for_byte(data, values):
    sent, found = sent_from(data)
    assert [value for value, *_ in sent] == values
    assert found.messages == len(values)
    assert found.bytes == sum(map(len, values))


def test_lines_are_joined_across_reads(monkeypatch):
    monkeypatch.setattr(feed, "CHUNK_BYTES", 3)
    sent, _ = sent_from(b"hello\nworld, how are you\n!")
    assert [value for value, *_ in sent] == [b"hello", b"world, how are you", b"!"]


def test_key_headers_and_partition_are_those_of_the_call():
    sent, _ = sent_from(b"a\n", key=b"k", headers=[("h", b"1")], partition=2)
    assert sent == [(b"a", b"k", [("h", b"1")], None, 2)]


def test_a_line_that_never_ends_is_refused_before_it_fills_the_memory(monkeypatch):
    monkeypatch.setattr(feed, "LINE_BYTES_MAX", 10)
    monkeypatch.setattr(feed, "CHUNK_BYTES", 8)
    with pytest.raises(LimitExceeded, match="standard input is longer than 10 bytes"):
        sent_from(b"x" * 100)


def test_a_whole_file_is_one_message():
    sent, found = sent_from(b"a\nb\n", whole=True)
    assert [value for value, *_ in sent] == [b"a\nb\n"]
    assert found.messages == 1


def test_json_lines_have_their_own_key_and_headers():
    data = b'{"value": "a", "key": "own", "headers": {"x": "1"}}\n{"value": {"deep": [1]}}\n{"value": null}\n'
    sent, _ = sent_from(data, as_json=True, key=b"given", headers=[("h", b"2")])
    assert sent == [
        (b"a", b"own", [("x", b"1"), ("h", b"2")], None, None),
        (b'{"deep":[1]}', b"given", [("h", b"2")], None, None),
        (None, b"given", [("h", b"2")], None, None),
    ]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"hello", "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"[1]", "is not a JSON object"),
        (b'{"key": "1"}', "has no field 'value'"),
        (b'{"value": 1, "vlaue": 2}', "unknown field 'vlaue'"),
        (b'{"value": {"base64": "?"}}', "bad base64"),
        (b'{"value": {"base64": 7}}', "bad base64"),
        (b'{"value": 1, "headers": "a=b"}', "headers that are neither"),
        (b'{"value": 1, "headers": [["a"]]}', "headers that are neither"),
        (b'{"value": 1, "timestamp": "soon"}', "not ISO 8601"),
        (b'{"value": 1, "timestamp": 5}', "not ISO 8601"),
    ],
)
def test_a_wrong_line_is_named_with_what_is_wrong(line, complaint):
    with pytest.raises(InvalidArgument) as caught:
        parse_entry(line, "orders.jsonl line 7")
    assert "line 7" in caught.value.message
    assert complaint in caught.value.message


def test_several_files_are_read_in_order_and_their_sizes_are_known(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_bytes(b"1\n2")
    second.write_bytes(b"3\n")
    recorder = Recorder()
    with open_feed([first, second], sending()) as found:
        list(found.send_through(recorder))
        assert found.bytes_total == 5
        assert not found.is_terminal
    assert [value for value, *_ in recorder.sent] == [b"1", b"2", b"3"]


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path):
    missing = tmp_path / "missing"
    with pytest.raises(InvalidArgument, match="missing cannot be read: No such file"), open_feed([missing], sending()):
        pass
