"""The frames of the Clustered Hashmap Protocol (ZeroMQ RFC 12/CHP), and what they mean in a table.

    ICANHAZ?   "ICANHAZ?" | subtree                                          client to snapshot port
    KVSYNC     key        | sequence u64 big endian | –    | –          | value      one for each key of the subtree
    KTHXBAI    "KTHXBAI"  | sequence                | –    | –          | subtree    after the last of them
    KVPUB      key        | sequence                | UUID | properties | value      a change; no value: deleted
    HUGZ       "HUGZ"     | 0                       | –    | –          | –          a sign of life
    KVSET      key        | any                     | UUID | properties | value      client to collector port

A key on the wire begins with a slash and a table's key does not: `/client/7` is `client/7`. The Guide's clients of
model 3, and its Python client of model 6, have keys without a slash. They are in a subtree of their own: `7` is `-/7`.
So each key of the wire is one key of the table, and comes back as it was sent.

A sequence is the offset after a change, so that it grows from 1 and is the same at every gateway of a table. Properties
are lines `name=value`. A UUID is any bytes: the Guide's C and Python clients send 16, its Java client 36 as text.

The Guide's models 1 to 4 leave out UUID and properties: three frames. Its Python clients of these models write and read
the sequence as four bytes. KVSET is taken in all these forms. What a client sends before its snapshot does not say
which form it reads, and a publisher sends one form to all, so a gateway is told the form of its clients (`shape`).

No socket is here: bytes in, bytes out.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from stentor.client.table_keys import check_key
from stentor.client.table_leases import checked_seconds
from stentor.errors import StentorError

if TYPE_CHECKING:
    from collections.abc import Callable

ICANHAZ: Final = b"ICANHAZ?"
KTHXBAI: Final = b"KTHXBAI"
HUGZ: Final = b"HUGZ"
UUID_BYTES_MAX: Final = 64
"""Of what a client calls a UUID: the longest way to write one as text has 45 characters."""
SLASHLESS: Final = "-/"
"""The subtree of the table for keys that have no slash at their beginning on the wire."""
_WORDS: Final = (KTHXBAI, HUGZ)
"""They stand where a key stands, so no key may be called so."""
PROPERTIES_BYTES_MAX: Final = 64 * 1024
"""Properties are settings of a change, such as `ttl=30`."""

UUID_HEADER: Final = "chp-uuid"
"""The header of a table's row that says which KVSET made it."""
PROPERTIES_HEADER: Final = "chp-properties"
"""The header of a table's row with the properties of that KVSET, as they came."""

_SLASHLESS: Final = SLASHLESS.encode()
_SEQUENCE: Final = struct.Struct(">Q")
_SHORT_BYTES: Final = 4
SHORT_SEQUENCE_MAX: Final = 2**31 - 1
"""The last sequence that four bytes hold: the clients that use them take the first bit for a sign."""

Frames = list[bytes]


class BadFrames(Exception):  # noqa: N818 - what a client sent, and no failure of ours
    """What a client sent is none of this protocol's messages; says why."""


class WantedChange(NamedTuple):
    """What a KVSET wants."""

    key: str  # the table's
    value: bytes | None  # None: the key is deleted
    uuid: bytes  # empty: none was given
    properties: bytes
    ttl_s: float | None


def wire_key(key: str) -> bytes:
    """A table's key as clients write it."""
    encoded = key.encode()
    slashless = encoded.removeprefix(_SLASHLESS)
    return slashless if slashless != encoded and slashless not in _WORDS else b"/" + encoded


def table_key(key: bytes) -> str:
    """A key of the wire as tables write it."""
    if key in _WORDS:
        raise BadFrames(f"no key may be called {key!r}")
    path = key[1:] if key.startswith(b"/") else _SLASHLESS + key
    try:
        checked = check_key(path.decode())
    except UnicodeDecodeError:
        raise BadFrames(f"the key {key[:40]!r} is not UTF-8") from None
    except StentorError as error:
        raise BadFrames(error.message) from None
    if wire_key(checked) != key:
        raise BadFrames(f"{key[:40]!r} is no key: what is below /{SLASHLESS} stands for keys without a slash")
    return checked


def parse_icanhaz(frames: Frames) -> bytes:
    """The subtree that a client wants; empty: everything."""
    if not frames or frames[0] != ICANHAZ:
        raise BadFrames(f"a request of {len(frames)} frames begins with {frames[0][:40] if frames else b''!r}")
    if len(frames) > 2:
        raise BadFrames(f"ICANHAZ? has {len(frames)} frames")
    return frames[1] if len(frames) == 2 else b""


def parse_kvset(frames: Frames) -> WantedChange:
    """What a client wants to change."""
    if len(frames) == 5:
        key, sequence, uuid, properties, value = frames
    elif len(frames) == 3:
        (key, sequence, value), uuid, properties = frames, b"", b""
    else:
        raise BadFrames(f"KVSET has {len(frames)} frames")
    if len(sequence) not in (_SHORT_BYTES, _SEQUENCE.size):
        raise BadFrames(f"the sequence of a KVSET has {len(sequence)} bytes")
    if len(uuid) > UUID_BYTES_MAX:
        raise BadFrames(f"the UUID of a KVSET has {len(uuid)} bytes")
    if len(properties) > PROPERTIES_BYTES_MAX:
        raise BadFrames(f"the properties of a KVSET have {len(properties)} bytes")
    unique = uuid if any(uuid) else b""  # all bytes zero say that there is none
    return WantedChange(table_key(key), value or None, unique, properties, ttl_of(properties))


def ttl_of(properties: bytes) -> float | None:
    """The seconds that a key lives, if the properties say so. Zero, which the Guide's clients send, means for ever."""
    found: float | None = None
    for line in properties.splitlines():
        name, equals, value = line.partition(b"=")
        if not equals:
            raise BadFrames(f"the property {line[:40]!r} is not of the form name=value")
        if name == b"ttl":
            try:
                found = checked_seconds(float(value), "ttl") if float(value) else None
            except ValueError:  # ours is one, too
                raise BadFrames(f"the ttl {value[:40]!r} is no number of seconds that a key may live") from None
    return found


def message(key: bytes, sequence: int, uuid: bytes, properties: bytes, value: bytes) -> Frames:
    """Five frames: KVSYNC, KTHXBAI, KVPUB, HUGZ."""
    return [key, _SEQUENCE.pack(sequence), uuid, properties, value]


def shape(*, three_frames: bool, short_sequences: bool) -> Callable[[Frames], Frames]:
    """Return what makes the form that clients read of five frames. Short sequences come in three frames."""
    if short_sequences:
        return _shortest
    return _short if three_frames else _as_it_is


def _as_it_is(frames: Frames) -> Frames:
    return frames


def _short(frames: Frames) -> Frames:
    return [frames[0], frames[1], frames[4]]


def _shortest(frames: Frames) -> Frames:
    """ValueError for a sequence that four bytes do not hold: cut, it would look like an old one."""
    (sequence,) = _SEQUENCE.unpack(frames[1])
    if sequence > SHORT_SEQUENCE_MAX:
        raise ValueError(f"the sequence {sequence} needs more than {_SHORT_BYTES} bytes")
    return [frames[0], frames[1][-_SHORT_BYTES:], frames[4]]
