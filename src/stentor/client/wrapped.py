"""What wraps a producer, a subscription or a bounded read is entered, left and closed as what it wraps."""

from __future__ import annotations

from typing import Any, Generic, Protocol, Self, TypeVar


class _Inner(Protocol):
    def close(self) -> None: ...
    def __enter__(self) -> Any: ...
    def __exit__(self, kind: object, *error: object) -> None: ...


class _AsyncInner(Protocol):
    async def close(self) -> None: ...
    async def __aenter__(self) -> Any: ...
    async def __aexit__(self, kind: object, *error: object) -> None: ...


I = TypeVar("I", bound=_Inner)  # noqa: E741 - the usual name
A = TypeVar("A", bound=_AsyncInner)


class Entered(Generic[I]):
    """The beginning and the end of what wraps something of the sync client."""

    _inner: I

    def close(self) -> None:
        """Close what it wraps: a producer flushes first, whoever waits in a subscription is released."""
        self._inner.close()

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        self._inner.__exit__(kind, *error)


class AsyncEntered(Generic[A]):
    """The same for `async` code."""

    _inner: A

    async def close(self) -> None:
        """Close what it wraps: a producer flushes first, whoever waits in a subscription is released."""
        await self._inner.close()

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, kind: object, *error: object) -> None:
        await self._inner.__aexit__(kind, *error)
