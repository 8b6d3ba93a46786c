"""What this broker asks others about cursors, and what they ask it: each question has an answer or a deadline.

CursorAsked(correlation, partition, question) ──► the head of that partition
CursorAnswered(correlation, found or failure) ◄──
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from stentor.errors import InternalError, NotReady, StentorError
from stentor.wire import messages
from stentor.wire.frames import CURSORS
from stentor.wire.peer import CursorAnswered, CursorAsked

if TYPE_CHECKING:
    from stentor.broker.background import Background
    from stentor.broker.cluster.peer_links import Peers
    from stentor.wire.peer import CursorQuestion, CursorsFound

logger = logging.getLogger(__name__)


class AnswersQuestions(Protocol):
    """Who answers what other brokers ask."""

    async def serve(self, index: int, question: CursorQuestion) -> CursorsFound: ...


class CursorQuestions:
    """Questions that are under way, in both directions."""

    def __init__(self, peers: Peers, heads: AnswersQuestions, background: Background) -> None:
        self._peers = peers
        self._heads = heads
        self._background = background
        self._correlations = 0
        self._waiting: dict[tuple[str, int], asyncio.Future[CursorsFound]] = {}  # by whom was asked

    async def ask(self, to: str, index: int, question: CursorQuestion, timeout_s: float) -> CursorsFound:
        """Ask another broker. NotReady if it does not answer in time."""
        if not self._peers.knows(to, CURSORS):
            raise NotReady(f"Broker {to} cannot be asked about cursors yet.", hint="Try again in a moment.")
        self._correlations += 1
        key = to, self._correlations
        waiting: asyncio.Future[CursorsFound] = asyncio.get_running_loop().create_future()
        self._waiting[key] = waiting
        self._peers.send(to, CursorAsked(self._correlations, index, question))
        try:
            async with asyncio.timeout(timeout_s):
                return await waiting
        except TimeoutError:
            raise NotReady(f"Broker {to} did not answer within {timeout_s:g} s.", hint="Try again.") from None
        finally:
            del self._waiting[key]

    def heard(self, sender: str, message: CursorAsked | CursorAnswered) -> None:
        """Another broker asks, or answers."""
        if isinstance(message, CursorAsked):
            self._background.spawn(self._answer(sender, message))
            return
        waiting = self._waiting.get((sender, message.correlation))
        if waiting is None or waiting.done():
            return  # too late
        if message.failure is not None:
            waiting.set_exception(messages.raised(message.failure))
        elif message.found is not None:
            waiting.set_result(message.found)

    async def _answer(self, sender: str, asked: CursorAsked) -> None:
        try:
            answer = CursorAnswered(asked.correlation, found=await self._heads.serve(asked.partition, asked.question))
        except StentorError as error:
            answer = CursorAnswered(asked.correlation, failure=messages.failure(error, "cursors"))
        except Exception as error:  # a bug of ours must not look like silence
            logger.exception("could not answer a question of broker %s about cursors", sender)
            failure = messages.failure(InternalError(f"{type(error).__name__}: {error}"), "cursors")
            answer = CursorAnswered(asked.correlation, failure=failure)
        self._peers.send(sender, answer)
