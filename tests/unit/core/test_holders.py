"""Who may use what somebody holds (C36)."""

from __future__ import annotations

from stentor.core.holders import HASH_BYTES, NOBODY, SECRET_BYTES, holder_of, may_use

MINE = bytes(range(SECRET_BYTES))
OTHERS = bytes(SECRET_BYTES)


def test_a_secret_has_one_hash_that_does_not_show_it():
    assert holder_of(MINE) == holder_of(MINE)
    assert len(holder_of(MINE)) == HASH_BYTES
    assert holder_of(MINE) not in (MINE, holder_of(OTHERS))


def test_what_is_held_opens_to_its_holder_alone():
    assert may_use(holder_of(MINE), holder_of(MINE))
    assert not may_use(holder_of(MINE), holder_of(OTHERS))
    assert not may_use(holder_of(MINE), NOBODY)
    assert not may_use(holder_of(MINE), holder_of(holder_of(MINE)))


def test_what_was_made_without_a_secret_is_open_as_it_was():
    assert holder_of(b"") == NOBODY
    assert may_use(NOBODY, NOBODY)
    assert may_use(NOBODY, holder_of(MINE))
