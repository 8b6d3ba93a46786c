from datetime import UTC, datetime, timedelta

import pytest

from stentor import InvalidArgument, Last
from stentor.cli.positions import parse_position


@pytest.mark.parametrize("text", ["earliest", "latest", "now"])
def test_words_mean_themselves_in_any_case(text):
    assert parse_position(text, "--start") == text
    assert parse_position(text.upper(), "--start") == text


@pytest.mark.parametrize(("text", "offset"), [("0", 0), ("1234", 1234), (" 7 ", 7)])
def test_a_number_is_an_offset(text, offset):
    assert parse_position(text, "--start") == offset


@pytest.mark.parametrize(
    ("text", "ago"),
    [
        ("-1h", timedelta(hours=1)),
        ("-90s", timedelta(seconds=90)),
        ("-1h30m", timedelta(minutes=90)),
        ("-1.5h", timedelta(minutes=90)),
        ("-250ms", timedelta(milliseconds=250)),
        ("15m ago", timedelta(minutes=15)),
        ("15min ago", timedelta(minutes=15)),
        ("2 d ago", timedelta(days=2)),
        ("1W AGO", timedelta(weeks=1)),
    ],
)
def test_a_duration_in_the_past_is_a_negative_timedelta(text, ago):
    assert parse_position(text, "--start") == -ago


def test_a_date_with_a_zone_is_that_moment():
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert parse_position("2026-01-31T12:00Z", "--start") == noon
    assert parse_position("2026-01-31T13:00+01:00", "--start") == noon


def test_a_date_without_a_zone_is_local_time():
    assert parse_position("2026-01-31", "--start") == datetime(2026, 1, 31)  # noqa: DTZ001 - that is the point


@pytest.mark.parametrize("text", ["last:100", "LAST:100"])
def test_last_is_a_number_of_messages(text):
    assert parse_position(text, "--start") == Last(100)


@pytest.mark.parametrize("text", ["", "soon", "1h ago ago", "last:", "last:-1", "2026-13-01", "٣", "--1h", "-", "ago"])
def test_anything_else_is_refused_with_the_words_that_are_allowed(text):
    with pytest.raises(InvalidArgument) as caught:
        parse_position(text, "--start")
    assert "--start" in str(caught.value)
    assert "last:100" in caught.value.hint


def test_a_duration_without_a_direction_is_refused_with_both_ways_to_say_it():
    with pytest.raises(InvalidArgument) as caught:
        parse_position("15m", "--start")
    assert "-15m or '15m ago'" in caught.value.hint


def test_a_negative_number_points_to_last():
    with pytest.raises(InvalidArgument) as caught:
        parse_position("-5", "--start")
    assert "last:5" in caught.value.hint
