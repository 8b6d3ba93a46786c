"""The cluster's secret: kept, rotated, and never shown."""

import pytest

from stentor import limits
from stentor.errors import CorruptData, InvalidArgument
from stentor.security.cluster_secret import ClusterSecret, Kept, decode_kept, decode_secret, encode, first_secret

SECOND_US = 1_000_000


def test_it_comes_back_as_it_was_kept():
    secret = first_secret()
    assert decode_secret(encode(secret)) == secret
    assert decode_kept(encode(Kept(secret, 1))) == Kept(secret, 1)


def test_it_is_not_shown():
    secret = ClusterSecret(b"s" * 32, b"p" * 32)
    shown = f"{secret!r} {secret} {Kept(secret)!r} {[secret]}"
    assert "ss" not in shown
    assert "pp" not in shown


@pytest.mark.parametrize(
    "value", [b"", b"x", encode({"current": b"short"}), encode({"current": b"c" * 33}), encode({"previous": b"p" * 32})]
)
def test_what_is_no_secret_is_refused_without_being_shown(value):
    with pytest.raises(CorruptData) as caught:
        decode_secret(value)
    assert "short" not in str(caught.value)
    with pytest.raises(CorruptData):
        decode_kept(value)


def test_a_rotation_keeps_the_one_before_and_drops_the_one_before_that():
    first = first_secret()
    second = first.rotated(SECOND_US)
    assert second.valid == (second.current, first.current)
    third = second.rotated(SECOND_US + int(limits.SECRET_ROTATION_S * SECOND_US))
    assert third.valid == (third.current, second.current)
    assert len({first.current, second.current, third.current}) == 3


def test_two_rotations_in_a_row_are_refused():
    """A broker that missed both would have no secret in common with the others."""
    secret = first_secret().rotated(SECOND_US)
    with pytest.raises(InvalidArgument, match="rotated less than"):
        secret.rotated(31 * SECOND_US)
