"""Who sends, and to which partition: ids of producers, and rows spread by their keys.

Every id that a producer sends under is the hash of a secret token, which it shows to brokers before its first batch
(core/dedupe.py). Readers see ids in the headers of batches: whoever could send under one would lock its producer out
(C36).

A producer without an identity gets a token that its client has drawn (`DrawnIds`). A lasting producer's token is the
hash of its identity, keyed with a secret: the one that the application gives (`secret=`), or that of the environment
($STENTOR_PRODUCER_SECRET). There is no default, because a lasting producer must have the same one after a crash,
perhaps on another machine. With an empty secret, given on purpose, the identity itself is all there is to know.
"""

from __future__ import annotations

import os
import secrets
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import msgspec

from stentor import limits
from stentor.core.dedupe import lasting_id
from stentor.errors import InvalidArgument

if TYPE_CHECKING:
    from stentor.client.producer_core import ProducerCore

SECRET_VARIABLE: Final = "STENTOR_PRODUCER_SECRET"  # noqa: S105 - where it is, not what it is
TOKEN_BYTES: Final = 32
"""How long a token is that a client draws."""

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
    """Return the token of a lasting producer: whoever has it continues what was sent under the identity.

    None stands for the secret of the environment; InvalidArgument if there is none.
    """
    if secret is None:
        secret = os.environ.get(SECRET_VARIABLE)
        if not secret:
            raise InvalidArgument(
                "A producer with an identity needs a secret, or others could send under it.",
                hint=f"Give secret=, or set {SECRET_VARIABLE}: the same one whenever the producer is opened again. With"
                " secret='' the identity itself is the secret; so it was in earlier versions, unless one was given.",
            )
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
    token: bytes | None = None  # what it shows to brokers; None: an id without one, as older versions have


class _DrawnId:
    """A token that a client has drawn, and the producers that send under its id now: one for each topic."""

    __slots__ = ("generation", "id", "token", "topics")

    def __init__(self) -> None:
        self.token = secrets.token_bytes(TOKEN_BYTES)
        self.id = lasting_id(self.token)
        self.generation = 0  # of the next producer: above that of all before it
        self.topics: set[str] = set()


class DrawnIds:
    """The ids of a client's producers that have no identity. Used in the client's loop.

    Batches are numbered per partition. So producers of different topics share an id, and one that is opened after
    another was closed goes on with its id, in a later generation: a client that opens a producer for every few messages
    shows one token on each connection, and partitions remember one producer.
    """

    def __init__(self) -> None:
        self._drawn: list[_DrawnId] = []

    def take(self, topic: str, generation: int) -> ProducerIdentity:
        """Return an id under which nobody here sends to this topic, until `give_back`."""
        for drawn in self._drawn:
            if topic not in drawn.topics:
                break
        else:
            # Lasting producers need some of what one connection may show, too.
            if len(self._drawn) >= limits.PRODUCERS_PER_CONNECTION_MAX // 2:
                return ProducerIdentity(secrets.randbits(62) + 1, generation)
            drawn = _DrawnId()
            self._drawn.append(drawn)
        drawn.topics.add(topic)
        return ProducerIdentity(drawn.id, max(generation, drawn.generation), token=drawn.token)

    def give_back(self, topic: str, sender: ProducerIdentity, generation: int) -> None:
        """A producer of this topic sends no more; `generation` is the last that it used. Unknown ids are ignored."""
        for drawn in self._drawn:
            if drawn.id == sender.id and topic in drawn.topics:
                drawn.topics.remove(topic)
                drawn.generation = max(drawn.generation, generation + 1)
                if drawn.generation > _GENERATION_MAX // 2:
                    self._drawn.remove(drawn)  # the next producer would have too few generations left
                return


def sender_of(ids: DrawnIds, topic: str, identity: str | None, secret: str | None, generation: int) -> ProducerIdentity:
    """Who a new producer is."""
    check_generation(generation)
    if identity is None:
        if secret is not None:
            raise InvalidArgument("A secret without an identity protects nothing.", hint="Give identity= as well.")
        return ids.take(topic, generation)
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
