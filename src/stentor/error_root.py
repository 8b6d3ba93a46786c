"""The root of the tree of errors (`stentor.errors`): what every error says, and how it crosses process borders."""

from __future__ import annotations

from typing import Any, ClassVar

BY_CODE: dict[str, type[StentorError]] = {}
"""Every error by its code, from when its module is loaded."""


class StentorError(Exception):
    """The root of the tree.

    Catch it to catch every error that Stentor raises. `retriable` says whether trying again can help.
    """

    code: ClassVar[str] = "error"
    retriable: bool = False

    def __init_subclass__(cls) -> None:
        if "code" in vars(cls) and cls.__module__.startswith("stentor."):  # not those of applications
            BY_CODE[cls.code] = cls

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        operation: str = "",
        object: str = "",  # noqa: A002 - the vocabulary's own word for what failed
        **detail: Any,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.operation = operation
        self.object = object
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.hint, self.operation, self.object, self.detail))


def _rebuild(
    kind: type[StentorError], message: str, hint: str, operation: str, what: str, detail: dict[str, Any]
) -> StentorError:
    """Errors cross process borders (Spark, multiprocessing), so they must pickle."""
    return kind(message, hint=hint, operation=operation, object=what, **detail)
