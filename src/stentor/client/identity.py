"""Who sends, and to which partition: ids of producers that last, and rows spread by their keys.

A lasting producer has a secret token, from which brokers know that it may send under its id (core/dedupe.py). The token
is the hash of its identity, keyed with a secret: the one that the application gives (`secret=`), or that of the
environment ($STENTOR_PRODUCER_SECRET). Without either, the identity itself is the only secret: whoever knows or guesses
it may send under it.
"""

from __future__ import annotations

import os
import secrets
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import msgspec

from stentor.core.dedupe import lasting_id
from stentor.errors import InvalidArgument

if TYPE_CHECKING:
    from stentor.client.producer_core import ProducerCore

SECRET_VARIABLE: Final = "STENTOR_PRODUCER_SECRET"  # noqa: S105 - where it is, not what it is
_GENERATION_MAX = 2**32 - 1  # what the header of a batch has room for


class FormerIdentity(str):
    """The identity of a producer that an older version began: its id is the plain hash of its name, which nothing
    protects. What was begun under such an id is finished under it, so that brokers recognise what they have.
    """

    __slots__ = ()


def check_generation(generation: object) -> None:
    """A generation that fits no header would be noticed when messages have been taken already."""
    if isinstance(generation, bool) or not isinstance(generation, int) or not 0 <= generation <= _GENERATION_MAX:
        raise InvalidArgument(
            f"generation={generation!r} is not a generation.", hint=f"Use a number from 0 to {_GENERATION_MAX}."
        )


def producer_token(identity: str, secret: str | None = None) -> bytes:
    """The token of a lasting producer: whoever has it continues what was sent under the identity."""
    if secret is None:
        secret = os.environ.get(SECRET_VARIABLE, "")
    key = blake2b(_encoded("secret", secret), digest_size=32).digest() if secret else b""
    return blake2b(_encoded("identity", identity), key=key, digest_size=32, person=b"stentor token").digest()


def producer_id_of(identity: str, secret: str | None = None) -> int:
    """The public side of it: the id that stands in the headers of its batches."""
    return lasting_id(producer_token(identity, secret))


class ProducerIdentity(msgspec.Struct, frozen=True):
    """Under which id a producer sends, and by what right."""

    id: int
    generation: int  # the first one; a lane goes on to the next where it gives something up
    lasting: bool = False  # it may be made again after a crash
    token: bytes | None = None  # what a lasting producer shows


def sender_of(identity: str | None, secret: str | None, generation: int) -> ProducerIdentity:
    """Who a new producer is."""
    check_generation(generation)
    if identity is None:
        if secret is not None:
            raise InvalidArgument("A secret without an identity protects nothing.", hint="Give identity= as well.")
        return ProducerIdentity(secrets.randbits(62) + 1, generation)
    if isinstance(identity, FormerIdentity):
        former = int.from_bytes(blake2b(identity.encode(), digest_size=8).digest(), "little") >> 2 or 1
        return ProducerIdentity(former, generation, lasting=True)
    token = producer_token(identity, secret)
    return ProducerIdentity(lasting_id(token), generation, lasting=True, token=token)


def _encoded(what: str, text: object) -> bytes:
    if not isinstance(text, str):
        raise InvalidArgument(f"A producer's {what} is text, not {type(text).__name__}.")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"A producer's {what} is not valid Unicode text.") from error


def by_partition(rows: Any, core: ProducerCore, partition: int | None) -> list[tuple[int, Any]]:
    """Split a batch by key hash, keeping the order inside each partition."""
    if partition is not None:
        return [(core.lane_for(None, partition).partition, rows)]
    if core.single is not None:
        return [(0, rows)]
    count = len(core.lanes)
    core.turn += 1
    turn = core.turn % count
    chosen: dict[int, list[int]] = {}
    for index, key in enumerate(rows.column(1).to_pylist()):
        if core.partitioner is not None:
            lane = core.lane_for(key, None).partition
        else:
            lane = turn if key is None else crc32(key) % count
        chosen.setdefault(lane, []).append(index)
    return [(lane, rows.take(indices)) for lane, indices in sorted(chosen.items())]
