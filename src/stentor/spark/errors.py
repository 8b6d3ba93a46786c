"""Errors as people should read them: Spark prints the traceback of what a data source raises, so it is kept short."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from stentor.errors import StentorError

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
R = TypeVar("R")


def plainly(method: Callable[P, R]) -> Callable[P, R]:
    """Let our own errors out without the way they came."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except StentorError as error:
            raise error.with_traceback(None) from None

    return call
