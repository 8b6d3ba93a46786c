import json
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from stentor import InvalidArgument
from stentor.cli import formats
from stentor.cli.publish_input import parse_entry


def message(value=b"v", key=None, headers=()):
    moment = datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=UTC)
    return SimpleNamespace(
        topic="orders.eu", partition=3, offset=41, timestamp=moment, key=key, value=value, headers=list(headers)
    )


BINARY = bytes(range(256))


def test_value_is_the_bytes_and_a_newline():
    assert formats.choose("value", with_key=False)(message(BINARY)) == BINARY + b"\n"


def test_value_with_key_puts_the_key_and_a_tab_before_it():
    shape = formats.choose("value", with_key=True)
    assert shape(message(b"v", b"k")) == b"k\tv\n"
    assert shape(message(None)) == b"\t\n"


def test_raw_is_the_bytes_alone():
    assert formats.choose("raw", with_key=False)(message(BINARY)) == BINARY


def test_a_terminal_gets_no_control_characters(monkeypatch):
    monkeypatch.setattr("sys.stdout", SimpleNamespace(isatty=lambda: True))
    shape = formats.choose("value", with_key=True)
    assert shape(message(b"\x1b[31mred\x00\xff\ttab", b"k")) == b"k\t\\x1b[31mred\\x00\\xff\ttab\n"
    assert shape(message("grün".encode(), b"k")) == "k\tgrün\n".encode()


@pytest.mark.parametrize("value", [b"", b"text", "grün ☃".encode(), BINARY, None, b"line\nbreak", b'{"a": 1}'])
def test_json_goes_out_and_comes_in_unchanged(value):
    line = formats.choose("json", with_key=False)(message(value, value, [("a", value), ("a", b"2")]))
    assert line.count(b"\n") == 1
    entry = parse_entry(line, "line 1")
    assert entry["value"] == value
    assert entry["key"] == value
    assert entry["headers"] == [("a", value), ("a", b"2")]
    assert entry["timestamp"] == message().timestamp


def test_json_says_where_and_when_the_message_is():
    found = json.loads(formats.choose("json", with_key=False)(message()))
    assert found["topic"] == "orders.eu"
    assert (found["partition"], found["offset"]) == (3, 41)
    assert found["timestamp"] == "2026-01-31T12:00:00.123456Z"


def test_a_table_line_is_one_line_without_control_characters(monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    line = formats.choose("table", with_key=False)(message(b"a\nb\x1b" + b"x" * 500, b"k\r"))
    text = line.decode()
    assert text.count("\n") == 1
    assert len(text) <= 141
    assert "a\\nb\\x1bxxx" in text
    assert text.endswith("…\n")
    assert "k\\r" in text


def test_a_table_tells_null_from_empty():
    shape = formats.choose("table", with_key=False)
    assert shape(message(None)).decode().rstrip().endswith("(null)")
    assert "(null)" not in shape(message(b"")).decode()


def test_a_table_has_a_heading_as_wide_as_its_lines():
    heading = formats.heading("table").decode()
    line = formats.choose("table", with_key=False)(message(b"VALUE", b"KEY")).decode()
    assert heading.index("VALUE") == line.index("VALUE")
    assert heading.index("KEY") == line.index("KEY")
    assert formats.heading("json") == b""


def test_an_unknown_format_is_refused_with_those_there_are():
    with pytest.raises(InvalidArgument, match=r"xml.*value, raw, json, table"):
        formats.choose("xml", with_key=False)
