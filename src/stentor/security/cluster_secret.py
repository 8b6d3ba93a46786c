"""The secret that the brokers of a cluster share, as it is kept: in the coordination store and in a file.

It is never shown: not in logs, errors or statistics, and not by `repr` either.

A rotation puts a new secret before the one in use, which stays valid beside it. So brokers that have heard of the
rotation and brokers that have not still share one, and no connection ends. The next rotation drops it.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from stentor import limits
from stentor.errors import CorruptData, InvalidArgument
from stentor.security.proof import SECRET_BYTES, new_secret

Secret = Annotated[bytes, msgspec.Meta(min_length=SECRET_BYTES, max_length=SECRET_BYTES)]


class ClusterSecret(msgspec.Struct, frozen=True):
    """The secret in use, and the one before it."""

    current: Secret
    previous: Secret | None = None
    rotated_at_us: int = 0  # 0: never

    def __repr__(self) -> str:
        return "ClusterSecret(…)"

    @property
    def valid(self) -> tuple[bytes, ...]:
        """All that prove something, the newest first."""
        return (self.current,) if self.previous is None else (self.current, self.previous)

    def rotated(self, now_us: int) -> ClusterSecret:
        """The next one. Not right after another rotation: a broker that missed both would share none with the rest."""
        wait_s = limits.SECRET_ROTATION_S - (now_us - self.rotated_at_us) / 1_000_000
        if self.rotated_at_us and wait_s > 0:
            raise InvalidArgument(
                f"The cluster's secret was rotated less than {limits.SECRET_ROTATION_S:g} s ago.",
                hint=f"Try again in {wait_s:.0f} s, when all brokers know the last one.",
            )
        return ClusterSecret(new_secret(), self.current, now_us)


class Kept(msgspec.Struct, frozen=True):
    """What a broker keeps in its data directory."""

    secret: ClusterSecret
    level: int = 0  # the cluster's feature level, as it was last known


_decoder = msgspec.msgpack.Decoder(ClusterSecret)
_kept = msgspec.msgpack.Decoder(Kept)
encode = msgspec.msgpack.encode


def first_secret() -> ClusterSecret:
    """That of a new cluster."""
    return ClusterSecret(new_secret())


def decode_secret(value: bytes) -> ClusterSecret:
    """As the store has it."""
    try:
        return _decoder.decode(value)
    except msgspec.MsgspecError:
        raise CorruptData("The cluster's secret in the coordination store is not valid.") from None


def decode_kept(value: bytes | memoryview) -> Kept:
    """As the file has it."""
    try:
        return _kept.decode(value)
    except msgspec.MsgspecError:
        raise CorruptData("The file with the cluster's secret is not valid.") from None
