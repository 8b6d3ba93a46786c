from datetime import timedelta

import pytest

from stentor import InvalidArgument
from stentor.cli.quantities import parse_bytes, parse_seconds, plural, read_duration, show_bytes, show_seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1048576", 1048576),
        ("64KiB", 65536),
        ("64k", 65536),
        ("10GB", 10_000_000_000),
        ("1.5 MiB", 1572864),
        ("7b", 7),
    ],
)
def test_sizes_are_read_in_units_of_1000_and_1024(text, size):
    assert parse_bytes(text, "--size") == size


@pytest.mark.parametrize("text", ["", "ten", "-1", "5 parsecs", "1e3", "1,000"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(InvalidArgument, match="is not a size"):
        parse_bytes(text, "--size")


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("7d", 604_800), ("1h30m", 5_400)])
def test_durations_are_read_in_seconds(text, seconds):
    assert parse_seconds(text, "--retention-age") == seconds


@pytest.mark.parametrize("text", ["", "soon", "0", "10ms", "-1h", "7 fortnights"])
def test_what_is_no_duration_of_a_second_or_more_is_refused(text):
    with pytest.raises(InvalidArgument, match="is not a duration"):
        parse_seconds(text, "--retention-age")


def test_a_duration_too_long_for_any_calendar_is_none():
    assert read_duration("9" * 30 + "w") is None
    assert read_duration("1w") == timedelta(weeks=1)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 * 1024**4, "3.0 TiB"), (1024**6, "1048576.0 TiB")],
)
def test_sizes_are_shown_with_a_unit(count, text):
    assert show_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0s"), (9.96, "10.0s"), (59, "59s"), (60, "1m"), (3_661, "1h1m"), (604_800, "7d"), (90_061, "1d1h")],
)
def test_durations_are_shown_with_their_two_largest_units(seconds, text):
    assert show_seconds(seconds) == text


def test_one_is_singular():
    assert plural(1, "message") == "1 message"
    assert plural(0, "message") == "0 messages"
    assert plural(1000, "message") == "1,000 messages"
