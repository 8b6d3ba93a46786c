"""The file with a broker's id, and its checksum beside it: one flipped bit must not make it another broker.

The id is one line of text, which people read and write; the checksum is in a file of its own, so that they still can,
and so that an older version understands the id. A file without a checksum is taken as it is, and gets one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from stentor.errors import CorruptData
from stentor.storage.files import atomic_write, storage_error

if TYPE_CHECKING:
    from pathlib import Path

CHECKSUM_SUFFIX: Final = ".crc32c"


def settle_broker_id(file: Path, told: str, made: str) -> str:
    """The id of the broker: what it is told, else what it was, else a new one; kept from now on."""
    try:
        known = load_broker_id(file)
    except CorruptData:
        if not told:
            raise
        known = ""
    broker_id = told or known or made
    if broker_id != known or not _checksum_file(file).exists():
        keep_broker_id(file, broker_id)
    return broker_id


def load_broker_id(file: Path) -> str:
    """The id that was kept; empty if there is none."""
    try:
        content = file.read_bytes()
        text = content.decode("utf-8").strip()
        checksum = _checksum_file(file)
        if checksum.exists() and checksum.read_text(encoding="ascii").strip() != _checksum(text):
            raise _damaged(file, "its checksum is wrong")
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError:
        raise _damaged(file, "it is not text") from None
    except OSError as error:
        raise storage_error(error, operation="read", path=file) from error
    return text


def keep_broker_id(file: Path, broker_id: str) -> None:
    """Write the id; without a checksum in between, so that a crash leaves no wrong one."""
    _checksum_file(file).unlink(missing_ok=True)
    atomic_write(file, broker_id.encode())
    atomic_write(_checksum_file(file), _checksum(broker_id).encode())


def _checksum_file(file: Path) -> Path:
    return file.with_name(file.name + CHECKSUM_SUFFIX)


def _checksum(text: str) -> str:
    return f"{crc32c(text.encode()):08x}"


def _damaged(file: Path, why: str) -> CorruptData:
    return CorruptData(
        f"The file {file} with this broker's id is damaged: {why}.",
        hint="Start with --broker-id and the id that this broker had, or with an empty data directory: the other"
        " brokers have the messages.",
        object=str(file),
    )
