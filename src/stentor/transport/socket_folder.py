"""A folder for unix sockets: the paths of these hold only about a hundred bytes, wherever temporary files are kept."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

_PATH_BYTES_MAX: Final = 103
"""`sun_path` holds 108 bytes on Linux and 104 elsewhere, the final zero among them."""
_NAME_BYTES: Final = 16
"""Room for the name of a socket in the folder."""
_SHORT: Final = "/tmp"  # noqa: S108 - mkdtemp makes a folder of its own there, for this user alone


def make_socket_folder(prefix: str) -> Path:
    """Make a folder for this user alone, in which paths of sockets are short enough; the caller removes it."""
    made = Path(tempfile.mkdtemp(prefix=prefix))
    if len(os.fsencode(made)) + 1 + _NAME_BYTES <= _PATH_BYTES_MAX:
        return made
    made.rmdir()
    return Path(tempfile.mkdtemp(prefix=prefix, dir=_SHORT))
