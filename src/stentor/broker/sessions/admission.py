"""Who is connected to this broker, and whether one more may be.

Strangers share what is left of connections, descriptors and memory after logs and other brokers have theirs:

    descriptors of the process
    ├ reserved ┼ HTTP ┼ one for each log ┼ clients … ┤
      segments that begin, reads, books, other brokers

A connection is a stranger until it has greeted, and a client unless it is another broker. Other brokers are not
counted against `connections_max`. Where clients have used that up, a newcomer may still greet, in an antechamber of a
few places and for a moment: a broker that comes back says who it is at once, and gets in; anyone else is told that
there is no room. When the antechamber is full too, whoever was in it for longest goes.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections import OrderedDict
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from stentor import limits
from stentor.broker.cluster.trust import refused
from stentor.broker.sessions.client_session import ClientSession
from stentor.broker.sessions.peer_session import PeerSession
from stentor.errors import Closed, LimitExceeded
from stentor.transport.budget import ReceiveBudget
from stentor.transport.sparing import SparingLog

if TYPE_CHECKING:
    from collections.abc import Callable, Sized

    from stentor.broker.environment import BrokerIdentity, Environment
    from stentor.broker.sessions.session import Session

logger = logging.getLogger(__name__)

_DEAF_S: Final = 2 * limits.SWEEP_S  # who took something a moment ago is not dropped for what others do not read


def raise_descriptor_limit() -> None:
    """Let this process open as many files as the system allows it to; many systems begin with 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        wanted = limits.DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else hard
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def descriptor_limit() -> int:
    """How many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limits.DESCRIPTORS_WANTED if soft == resource.RLIM_INFINITY else soft


def _part(bound: int) -> int:
    """So many descriptors, or fewer where there are few."""
    return min(bound, descriptor_limit() // limits.DESCRIPTORS_PARTS)


class Admission:
    """The connections that others made to this broker."""

    def __init__(self, environment: Environment, identity: BrokerIdentity, logs: Sized) -> None:
        self._clock = environment.clock
        self._connections_max = environment.config.connections_max
        self._identity = identity
        self._logs = logs
        self._slices = environment.slices
        self._sweeping = False
        self._strangers = SparingLog(logger, environment.clock.monotonic)
        self._peers = 0
        self._second_sockets = 0  # of relays
        self._antechamber: OrderedDict[Session, float] = OrderedDict()  # since when
        self._none_left = asyncio.Event()
        self.sessions: set[Session] = set()
        self.receiving = ReceiveBudget()
        self.refusals = 0
        self.stopping = False  # nobody new is let in

    # --- descriptors ----------------------------------------------------------------------------

    def check_descriptors(self, logs: int) -> None:
        """LimitExceeded if the files of so many more logs could take those that others need."""
        limit = descriptor_limit()
        left = self._spare - max(_part(limits.DESCRIPTORS_CLIENTS_MIN), self._taken)
        if logs > left:
            raise LimitExceeded(
                f"{logs} more partitions need as many open files; this broker may open {limit} and can spare"
                f" {max(0, left)}.",
                hint="Allow the broker's process more open files (ulimit -n, LimitNOFILE), or make fewer partitions.",
                limit=limit,
                left=max(0, left),
            )

    @property
    def clients_max(self) -> int:
        """How many clients there is room for now."""
        return min(self._connections_max, max(_part(limits.DESCRIPTORS_CLIENTS_MIN), self._spare))

    @property
    def http_max(self) -> int:
        """How many connections the HTTP side may have."""
        return _part(limits.HTTP_CONNECTIONS_MAX)

    @property
    def _spare(self) -> int:
        """Descriptors for clients and for more logs."""
        return descriptor_limit() - _part(limits.DESCRIPTORS_RESERVED) - self.http_max - len(self._logs)

    @property
    def _taken(self) -> int:
        """Sockets that connections take; a relay takes two."""
        return len(self.sessions) + self._second_sockets

    @property
    def _clients(self) -> int:
        return self._taken - self._peers - len(self._antechamber)

    # --- coming and going -----------------------------------------------------------------------

    def started(self, session: Session) -> None:
        """Somebody connected."""
        if self.stopping:
            session.refused(Closed("This broker is stopping.", hint="Connect to another broker."))
            return
        full = self._clients >= self.clients_max
        if full and self._identity.alone:
            session.refused(self._full())
            return
        self.sessions.add(session)
        if full:
            if len(self._antechamber) >= limits.ANTECHAMBER_CONNECTIONS:
                self._turn_away(next(iter(self._antechamber)))
            self._antechamber[session] = self._clock.monotonic()

    def greeted(self, session: Session) -> None:
        """It is a client, and no broker; Closed if there is no room for it."""
        if session in self._antechamber:
            raise self._full()

    def became(self, newcomer: Session, session: Session) -> None:
        """It has greeted: this is its session now. For other brokers there is always room."""
        self.sessions.discard(newcomer)
        self._antechamber.pop(newcomer, None)
        self.sessions.add(session)
        self._second_sockets += session.connections - 1
        if session.is_peer:
            session.connection.favoured = True
            self._peers += 1

    def ended(self, session: Session) -> None:
        """Its connection is gone."""
        if session in self.sessions:
            self.sessions.discard(session)
            self._antechamber.pop(session, None)
            self._peers -= session.is_peer
            self._second_sockets -= session.connections - 1
        if not self.sessions:
            self._none_left.set()

    def note_refusal(self, text: str, *details: object) -> None:
        """Somebody was refused or dropped; said sparingly, because strangers cause it."""
        self._strangers.info(text, *details)
        self.refusals += 1

    def clients(self) -> list[ClientSession]:
        return [session for session in self.sessions if isinstance(session, ClientSession)]

    def check_peers(self, accepts: Callable[[str, bytes], bool]) -> None:
        """The cluster's secret or feature level changed: who came in by what no longer counts comes in again."""
        for session in list(self.sessions):
            if isinstance(session, PeerSession) and not accepts(session.peer, session.proven_by):
                session.refused(refused(f"Broker {session.peer} must prove again who it is."))

    def close_watchers(self) -> None:
        """This broker is cut off: its clients find another home."""
        for session in self.clients():
            if session.watches_routes:
                session.close()

    async def close(self) -> None:
        """Everyone is told, and let go."""
        self._none_left.clear()
        if not self.sessions:
            self._none_left.set()
        for session in list(self.sessions):
            session.going_away()
            session.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._none_left.wait(), limits.SHUTDOWN_S / 2)
        for session in list(self.sessions):
            session.connection.abort()

    def _turn_away(self, session: Session) -> None:
        error = self._full()
        del self._antechamber[session]
        session.refused(error)

    def _full(self) -> Closed:
        return Closed(
            f"This broker has {self._clients} connections, which is its limit.",
            hint="Try again later, or connect to another broker.",
        )

    # --- every second ---------------------------------------------------------------------------

    def sweep(self, now: float, *, lagged: bool) -> None:
        """Close what is half-open, stuck, deaf or silent; `lagged`: this broker itself stood still."""
        for session in [s for s, since in self._antechamber.items() if now - since > limits.ANTECHAMBER_S]:
            self._turn_away(session)
        if lagged:
            for session in self.sessions:
                session.excuse(now)
        if not self._sweeping:
            self._sweeping = True
            sweeps = (partial(session.sweep, now) for session in list(self.sessions))
            self._slices.begin("looking at connections", sweeps, self._swept)
        self.receiving.reclaim(now)
        self._drop_deaf(now)
        self._strangers.tick()

    def _swept(self) -> None:
        self._sweeping = False

    def _drop_deaf(self, now: float) -> None:
        """What all clients together do not read is bounded; who has not read for longest goes first."""
        unsent = {s: size for s in self.sessions if not s.is_peer and (size := s.connection.unsent_bytes)}
        total = sum(unsent.values())
        for session in sorted(unsent, key=lambda s: s.deaf_since):
            if total <= limits.UNSENT_TOTAL_BYTES_MAX or now - session.deaf_since < _DEAF_S:
                return
            session.drop_deaf("clients that do not read hold too much memory")
            total -= unsent[session]
