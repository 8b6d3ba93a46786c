"""What an application says when it connects: where brokers are, and who it is."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from stentor import limits
from stentor.errors import InvalidArgument
from stentor.transport.address import DEFAULT_PORT, Address


def parse_url(url: str | None) -> list[str]:
    """Addresses out of "stentor://a:7440,b", "a:1,b:2" or nothing ($STENTOR_URL, else localhost)."""
    text = url if url is not None else os.environ.get("STENTOR_URL", "localhost")
    if not isinstance(text, str):
        raise InvalidArgument(
            f"A URL is text, not {type(text).__name__}.", hint='Several addresses are one text: "a:7440,b:7440".'
        )
    if "@" in text:
        # Whatever stands before it may be a password: it is not repeated here.
        raise InvalidArgument(
            "The URL holds a user or a password; Stentor has no users.", hint="Use stentor://host:port or host:port."
        )
    scheme, separator, rest = text.partition("://")
    if separator and scheme != "stentor":
        raise InvalidArgument(
            f"{text!r} is not a Stentor URL.", hint="Use stentor://host:port or host:port.", object=text
        )
    parts = (rest if separator else text).rstrip("/").split(",")
    return [str(Address.parse(part, DEFAULT_PORT)) for part in parts]


def default_name() -> str:
    """What operators see when the application does not name its client."""
    program = Path(sys.argv[0] or "python").name or "python"
    return f"{program}@{socket.gethostname()}:{os.getpid()}"[: limits.CLIENT_NAME_CHARACTERS_MAX]


def checked_name(name: object) -> str:
    """The name that operators see: what the application says, else the default."""
    label = default_name() if name is None else name
    if not isinstance(label, str):
        raise InvalidArgument(f"A client's name is text, not {type(label).__name__}.")
    if len(label) > limits.CLIENT_NAME_CHARACTERS_MAX:
        raise InvalidArgument(
            f"The client's name has {len(label)} characters; the limit is {limits.CLIENT_NAME_CHARACTERS_MAX}."
        )
    return label
