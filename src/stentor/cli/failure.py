"""Failures as a person sees them: one sentence on standard error, and an exit code.

    0    success, also when the reader of our output closed the pipe
    1    something failed: no broker, no such topic, a full disk, a verification that did not hold
    2    the command line is wrong: an unknown option, a malformed position, an impossible setting
    130  interrupted with Ctrl-C

With STENTOR_DEBUG=1 the traceback is printed as well.
"""

from __future__ import annotations

import os
import sys
from typing import Final

import typer

from stentor.errors import InvalidArgument, ProtocolError, StentorError

EXIT_OK: Final = 0
EXIT_ERROR: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130

_HTTP_ANSWER: Final = f"unknown kind {ord('/')}"
"""An answer that begins with HTTP/1.1 is, for us, a frame of the kind that `/` is the number of."""


def report(error: Exception) -> int:
    """Print what went wrong and return the exit code for it."""
    if os.environ.get("STENTOR_DEBUG") == "1":
        import traceback

        traceback.print_exception(error)
    sentence, code = describe(error)
    complain(sentence)
    return code


def complain(sentence: str) -> None:
    """Say something on standard error, on one line, with our name before it."""
    print(f"stentor: {' '.join(sentence.split())}", file=sys.stderr, flush=True)


def describe(error: Exception) -> tuple[str, int]:
    """The sentence and the exit code for an error."""
    if isinstance(error, StentorError):
        sentence = f"{error.message} {hint_of(error)}".rstrip()
        return sentence, EXIT_USAGE if isinstance(error, InvalidArgument) else EXIT_ERROR
    if isinstance(error, typer.TyperException):
        return _describe_usage(error), error.exit_code
    if isinstance(error, typer.Abort):
        return "Nothing was done.", EXIT_ERROR
    if isinstance(error, OSError):
        return _describe_system(error), EXIT_ERROR
    kind = type(error).__name__
    return f"A bug in Stentor: {kind}: {error}. Please report it with the output of STENTOR_DEBUG=1.", EXIT_ERROR


def hint_of(error: StentorError) -> str:
    """What to do now: what the error says, or what it means for a person who typed an address."""
    if isinstance(error, ProtocolError) and _HTTP_ANSWER in error.message:
        return "This looks like an HTTP port. Clients use another port of the broker, usually 7440."
    return error.hint


def _describe_usage(error: typer.TyperException) -> str:
    message = error.format_message().strip()
    if message and message[-1] not in ".?!":
        message += "."
    context = getattr(error, "ctx", None)
    return f"{message} Try '{context.command_path} --help'." if context is not None else message


def _describe_system(error: OSError) -> str:
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}." if error.filename else f"{reason}."
