"""A broker's contact with the coordination store of its cluster: its liveness key, and whether the store answers."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from stentor import limits
from stentor.errors import StentorError

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor.ports import CoordinationStore

logger = logging.getLogger(__name__)


class StoreContact:
    """Two loops that run for as long as the broker is a member of its cluster."""

    def __init__(self, store: CoordinationStore, broker_id: str, incarnation: int) -> None:
        self._store = store
        self._key = f"live/{broker_id}"
        self._incarnation = incarnation
        self._lease = 0
        self._answers = True

    async def keep_alive(self) -> None:
        """The liveness key: a slow second observer, for when too few brokers are left to be one (E1)."""
        store = self._store
        while True:
            try:
                if not self._lease:
                    self._lease = await store.lease(limits.LEASE_S)
                    await store.swap(expect={}, put={self._key: str(self._incarnation).encode()}, lease=self._lease)
                await store.keep_alive(self._lease)
            except StentorError as error:
                logger.debug("the liveness key: %s", error)
                self._lease = 0
            await asyncio.sleep(limits.LEASE_S / 3)

    async def ask(self, tell: Callable[[bool], None]) -> None:
        """C29: know whether the store can be reached before it is needed."""
        while True:
            answers = False
            with suppress(StentorError, TimeoutError):
                async with asyncio.timeout(limits.STORE_ANSWER_S):
                    await self._store.get(self._key)
                answers = True
            if answers != self._answers:
                self._answers = answers
                level = logging.INFO if answers else logging.WARNING
                logger.log(level, "the coordination store %s", "answers again" if answers else "does not answer")
            tell(answers)
            await asyncio.sleep(limits.STORE_ASK_S)
