"""How a copy that begins anew gets the state that its predecessor derived from what came before (C19).

    P ── Linked(reset) ──► S       begin anew at `cut`; the state as of there can be asked for
    S ── AskState ───────► P       from this position on
    P ── StatePiece ─────► S       … again and again, one piece at a time, until all of it is there
    S    Truncate                  the old log goes, the state is kept and restored

One piece is under way at a time, so neither side holds more than it must, and nothing else on the connection waits for
long. The successor's old log stays until the whole state is there. A lost piece is asked for again; if the
predecessor's log begins elsewhere meanwhile (retention), both link anew. Brokers of before this protocol put the whole
state into Linked; they are known by what their Link lacks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stentor.core import chain_messages as m
from stentor.core import replica_events as r

if TYPE_CHECKING:
    from stentor.core.linking import Linking
    from stentor.core.replica import Replica
    from stentor.core.replica_events import ReplicaEffect as Effect

ASK_AGAIN_US: Final = 500_000
"""A question about a link that got no answer is asked again after this long."""


class StateTransfer:
    """What one replica gets from its predecessor, and gives to its successor."""

    def __init__(self, replica: Replica, links: Linking) -> None:
        self._replica = replica
        self._links = links
        self._linked: m.Linked | None = None  # what is to be done once the state is there
        self._received = bytearray()
        self._asked_us = 0

    @property
    def under_way(self) -> bool:
        return self._linked is not None

    def begin(self, linked: m.Linked, now_us: int) -> list[Effect]:
        """The log is to begin anew at `linked.cut`."""
        self._linked, self._received = linked, bytearray()
        return self._ask(now_us)

    def forget(self) -> None:
        """What was received is of no use any more."""
        self._linked, self._received = None, bytearray()

    def _ask(self, now_us: int) -> list[Effect]:
        linked, predecessor = self._linked, self._replica.position.predecessor
        if linked is None or predecessor is None:
            return []
        self._asked_us = now_us
        ask = m.AskState(linked.epoch, linked.attempt, linked.cut, len(self._received))
        return [r.Send(predecessor.broker, ask)]

    def tick(self, now_us: int) -> list[Effect]:
        return self._ask(now_us) if now_us - self._asked_us >= ASK_AGAIN_US else []

    def taken(self, piece: m.StatePiece, now_us: int) -> list[Effect]:
        """A piece, from the predecessor of this epoch."""
        linked = self._linked
        if linked is None or piece.attempt != linked.attempt or piece.position != len(self._received):
            return []  # for an older link, or said twice
        if piece.gone:
            self.forget()
            return self._links.ask(now_us)
        self._received += piece.data
        if len(self._received) < piece.total:
            return self._ask(now_us)
        state = bytes(self._received)
        self.forget()
        return self._links.begin_anew(linked, state or None)

    def asked(self, sender: str, ask: m.AskState, now_us: int) -> list[Effect]:
        """The successor of this epoch wants a piece; only one that gets further gets more time."""
        self._replica.downstream.takes_state(ask.position, now_us)
        return [r.GiveState(sender, ask)]
