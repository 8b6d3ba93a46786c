"""The producer secret of a query, kept in its checkpoint: whoever goes on with the query finds it, and nobody else.

Spark tells a sink where the checkpoint is only if that was an option of the stream, and in the driver there is no
Hadoop for Python. So a secret is kept only where the checkpoint is a directory that this process can open: Spark has
written the query's own id into its `metadata`. Anything else may be a directory of the same name on another file
system, or one that a driver on another machine does not have, and what was begun could not be finished there.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

logger = logging.getLogger(__name__)

FILE: Final = "stentor-producer-secret"
_SECRET_BYTES: Final = 32


def kept_secret(checkpoint: str, query: str, *, make: bool) -> str:
    """Return the secret that a query keeps in its checkpoint; make one if there is none and `make` says so.

    Empty if there is none, or if this process cannot keep one there.
    """
    place = _directory(checkpoint)
    if place is None or not query:
        return ""
    try:
        if json.loads((place / "metadata").read_text("utf-8").partition("\n")[0])["id"] != query:
            return ""
        if make and not (place / FILE).exists():
            _make(place)
        return (place / FILE).read_text("ascii").strip()
    except FileNotFoundError:  # of the secret, or it is no checkpoint that this machine can see
        return ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("The checkpoint %s of a query keeps no producer secret: %s", checkpoint, error)
        return ""


def _directory(checkpoint: str) -> Path | None:
    """The checkpoint as a local directory, if it can be one."""
    url = urlsplit(checkpoint)
    if not url.scheme:
        return Path(checkpoint) if checkpoint else None
    if url.scheme == "file" and url.netloc in ("", "localhost"):
        return Path(unquote(url.path))
    return None


def _make(place: Path) -> None:
    """Write a secret that only the owner may read (S4). Of two drivers that do so at once, the first one counts. It is
    on the disk before anything is sent under it.
    """
    draft = place / f".{FILE}.{secrets.token_hex(8)}"
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(secrets.token_hex(_SECRET_BYTES))
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(draft, place / FILE)
    except FileExistsError:
        return
    finally:
        draft.unlink()
    directory = os.open(place, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
