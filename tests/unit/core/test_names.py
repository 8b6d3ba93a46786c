import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.core.names import check_pattern, check_topic_name, is_pattern, matches
from stentor.errors import InvalidArgument

segment = st.from_regex(r"[A-Za-z0-9-][A-Za-z0-9_-]{0,5}", fullmatch=True)
names = st.lists(segment, min_size=1, max_size=5).map(".".join)


@pytest.mark.parametrize("name", ["a", "orders.eu", "A-1_b.c", "_internal", "x" * 200, "1.2.3"])
def test_dotted_segments_are_a_topic_name(name):
    assert check_topic_name(name) == name
    assert check_pattern(name) == name
    assert not is_pattern(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "a.",
        ".a",
        "a..b",
        "a b",
        "a/b",
        "a*",
        "*",
        ">",
        "a.>",
        "é",
        "a\n",
        "a\0",
        "x" * 201,
        None,
        5,
        b"a",
        ["a"],
    ],
)
def test_anything_else_is_refused_with_a_sentence(name):
    with pytest.raises(InvalidArgument) as caught:
        check_topic_name(name)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize("pattern", ["*", ">", "a.*", "a.>", "*.b", "*.*", "a.*.c.>"])
def test_stars_and_a_final_arrow_make_a_pattern(pattern):
    assert check_pattern(pattern) == pattern
    assert is_pattern(pattern)


@pytest.mark.parametrize("pattern", ["", ">.a", "a.>.b", "a*", "a.b*", "**", ">>", "a..*", "*" * 201, "a.*.", None, 7])
def test_other_uses_of_them_are_refused(pattern):
    with pytest.raises(InvalidArgument, match="pattern"):
        check_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "name", "covered"),
    [
        ("orders", "orders", True),
        ("orders", "orders2", False),
        ("orders", "orders.eu", False),
        ("orders.*", "orders.eu", True),
        ("orders.*", "orders", False),
        ("orders.*", "orders.eu.de", False),
        ("orders.*", "orders2.eu", False),
        ("orders.>", "orders.eu", True),
        ("orders.>", "orders.eu.de", True),
        ("orders.>", "orders", False),
        ("*.eu", "orders.eu", True),
        ("*.eu", "eu", False),
        ("a.*.c", "a.b.c", True),
        ("a.*.c", "a.b.d", False),
        (">", "a.b.c", True),
        ("*", "a", True),
        ("*", "a.b", False),
        (">", "_alerts", False),
        ("*", "_alerts", False),
        ("*.x", "_alerts.x", False),
        ("_alerts", "_alerts", True),
        ("_alerts.>", "_alerts.x", True),
        ("a.>", "a._x", True),
    ],
)
def test_patterns_cover_whole_segments_and_no_internal_topics(pattern, name, covered):
    assert matches(pattern, name) is covered


@settings(deadline=None)
@given(names, names)
def test_a_plain_name_covers_itself_alone(one, other):
    assert matches(one, other) == (one == other)


@settings(deadline=None)
@given(names, st.data())
def test_a_star_stands_for_exactly_one_segment_anywhere(name, data):
    segments = name.split(".")
    place = data.draw(st.integers(0, len(segments) - 1))
    pattern = ".".join([*segments[:place], "*", *segments[place + 1 :]])
    assert matches(pattern, name)
    assert not matches(pattern, name + ".more")
    assert matches(".".join([*segments[:place], ">"]), name)
