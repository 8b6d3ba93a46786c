"""Who reads and writes Arrow bodies: pyarrow once it is loaded, plain Python until then.

pyarrow is 170 MB on disk and takes 50 to 100 ms to load. In batches of 2,000 it writes a message 0.03 to 0.07 µs faster
and reads it 0.07 to 0.15 µs faster, the more so with keys; in batches of 50 the two are alike. To write, it loads
pandas where that is installed, which takes 300 ms more: plain Python goes on writing, unless pandas is there.
So a process that handles few messages, or is over soon, never loads it; one that handles many (`PLAIN_MESSAGES_MAX`) or
goes on (`PLAIN_S`) loads it beside its work. Whoever asks for Arrow itself loads it at once.

What needs pyarrow in any case (Arrow tables, compressed bodies) is MissingPackage where it is not installed.
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager, suppress
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from stentor import limits
from stentor.errors import MissingPackage, StentorError
from stentor.wire import arrow_message, plain_body

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import ModuleType

    from stentor.wire.rows import Columns, Headers

_arrow: ModuleType | None = None  # wire.arrow_body, once it is loaded completely
_coded = 0  # messages read and written without it; not exact where threads meet
_since = 0.0  # when the first of them was
_loading = False  # a thread has been started for it


def arrow(what: str = "This") -> Any:
    """The module `wire.arrow_body`, loaded now if need be; MissingPackage says what it is needed for."""
    global _arrow  # noqa: PLW0603 - as a module is loaded once for a process
    if _arrow is None:
        try:
            import pyarrow as _  # noqa: F401, ICN001 - to tell its absence from any other mistake
        except ImportError as error:
            raise MissingPackage(
                f"{what} needs pyarrow, which is not installed.", hint="pip install 'pyarrow>=18'"
            ) from error
        _arrow = import_module("stentor.wire.arrow_body")
    return _arrow


def encode(
    timestamps: Sequence[int],
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    headers: Sequence[Headers | None] | None,
    compression: str = "",
) -> tuple[bytes | memoryview, int]:
    """Messages as a body, and how many bytes their keys have, or a few more."""
    if not compression and (_arrow is None or _would_load_pandas()):
        _count(len(values))
        return plain_body.encode(timestamps, keys, values, headers)
    codec = arrow("Compression")
    batch = codec.record_batch(timestamps, keys, values, headers)
    return codec.encode(batch, compression), batch.column(1).nbytes


@lru_cache(maxsize=1)
def _has_pandas() -> bool:
    return find_spec("pandas") is not None


def _would_load_pandas() -> bool:
    """Whether `pyarrow.array` would: it does, to see whether what it is given is a Series."""
    return "pandas" not in sys.modules and _has_pandas()


def columns(body: memoryview, count: int) -> Columns:
    """The messages of a body as lists of Python values."""
    codec = _arrow
    if codec is None:
        contents = arrow_message.read(body, count)
        if not contents.compression:
            _count(count)
            return plain_body.columns(body, contents)
        codec = arrow(f"A batch that is {arrow_message.compressed(contents.compression)}")
    found: Columns = codec.columns(codec.decode(body, count))
    return found


@contextmanager
def uncounted() -> Iterator[None]:
    """What is decoded meanwhile does not bring pyarrow nearer: for those whose messages cost far more than their
    decoding, and who gain a few percent at most from all that pyarrow takes.
    """
    global _coded  # noqa: PLW0603 - of the process
    before = _coded
    try:
        yield
    finally:
        _coded = before


def _count(messages: int) -> None:
    global _coded, _since  # noqa: PLW0603 - of the process
    _since = _since or time.monotonic()
    _coded += messages
    if not _loading and _coded > limits.PLAIN_MESSAGES_MIN and _pays():
        _load()


def _pays() -> bool:
    """Whether this process handles so many messages, or lives for so long, that pyarrow is worth its time."""
    return _coded > limits.PLAIN_MESSAGES_MAX or time.monotonic() - _since > limits.PLAIN_S


def _load() -> None:
    """Beside the work: whoever sends or reads does not wait for it."""
    global _loading  # noqa: PLW0603 - of the process
    _loading = True
    if find_spec("pyarrow") is not None:
        threading.Thread(target=_try, name="stentor-arrow").start()


def _try() -> None:
    with suppress(StentorError):  # plain Python goes on
        arrow()
