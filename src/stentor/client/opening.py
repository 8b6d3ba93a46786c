"""What an async client opens: await it, enter it with `async with`, or iterate over it, whichever reads best."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from stentor.client.history import AsyncHistory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Generator

    from stentor.client.message import Message

T = TypeVar("T")


class Opening(Coroutine[Any, Any, T]):
    """A producer, subscription or read that is about to be opened.

    `async with client.producer("orders") as producer` opens it, and closes it at the end of the block.
    `await client.producer("orders")` opens it, and leaves closing to you. It is a coroutine, so tasks take it as well.
    """

    def __init__(self, opening: Coroutine[Any, Any, T]) -> None:
        self._opening = opening
        self._opened: Any = None

    def __await__(self) -> Generator[Any, Any, T]:
        return self._opening.__await__()

    def send(self, value: Any) -> Any:
        """For event loops: go on with it."""
        return self._opening.send(value)

    def throw(self, *error: Any) -> Any:
        """For event loops: raise an error in it."""
        return self._opening.throw(*error)

    def close(self) -> None:
        """Give it up before it was opened."""
        self._opening.close()

    async def __aenter__(self) -> T:
        self._opened = await self._opening
        opened: T = await self._opened.__aenter__()
        return opened

    async def __aexit__(self, *error: object) -> None:
        await self._opened.__aexit__(*error)


class OpeningRead(Opening[AsyncHistory]):
    """The same for a read, over which one may also iterate at once."""

    async def __aiter__(self) -> AsyncIterator[Message]:
        async for message in await self._opening:
            yield message
