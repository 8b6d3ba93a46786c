"""Which topics the patterns of groups cover: found out once, and kept as topics come and go."""

import random

from stentor.core import group_topics
from stentor.core.group_topics import GroupTopics
from stentor.core.names import matches

PATTERNS = ["a.*", "*.1", "a.>", ">", "*.*", "b.2", "nothing.*", "_x.*", "*.1.*"]


def topics(*names):
    return {name: (number, 1) for number, name in enumerate(names, 1)}


def test_it_covers_what_patterns_match_however_topics_have_come_and_gone(monkeypatch):
    monkeypatch.setattr(group_topics, "_GONE_MAX", 5)
    drawn = random.Random(7)
    everything = [f"{first}.{second}" for first in ("a", "b", "_x") for second in range(20)]
    everything += [f"{name}.more" for name in everything]
    known = None
    for _ in range(100):
        there = topics(*drawn.sample(everything, drawn.randrange(len(everything))))
        known = GroupTopics(there, known)
        for some in (drawn.sample(PATTERNS, 3), PATTERNS[:1], []):
            found = list(known.names(known.covered(some)))
            assert sorted(found) == sorted(name for name in there if any(matches(each, name) for each in some))


def test_only_new_topics_are_compared(monkeypatch):
    """100 members with 64 patterns each and 1,000 topics took 5 s with every change of a topic."""
    compared = []
    monkeypatch.setattr(group_topics, "matches", lambda pattern, name: compared.append(name) or matches(pattern, name))
    known = GroupTopics(topics(*(f"a.{number}" for number in range(100))))
    for _ in range(3):
        known.covered(["a.*", "*.7", "a.5"])
    assert len(compared) == 200
    known = GroupTopics(known.topics | {"a.new": (1_000, 1)}, known)
    known = GroupTopics({name: about for name, about in known.topics.items() if name != "a.7"}, known)
    assert len(compared) == 202
    assert len(list(known.names(known.covered(["a.*", "*.7"])))) == 100


def test_what_is_remembered_has_a_bound(monkeypatch):
    monkeypatch.setattr(group_topics, "PATTERNS_KNOWN_MAX", 10)
    known = GroupTopics(topics("a.1"))
    for number in range(100):
        known.covered([f"a.{number}.*", "a.*"])
    assert len(known._known) == 10
    assert known.knows("a.1"), "a plain name is looked up"
