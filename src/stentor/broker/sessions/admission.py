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

import logging
import resource
from typing import TYPE_CHECKING, Final

from stentor import limits
from stentor.errors import Closed, LimitExceeded
from stentor.transport.budget import ReceiveBudget
from stentor.transport.sparing import SparingLog

if TYPE_CHECKING:
    from stentor.broker.broker import Broker
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

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.sessions: set[Session] = set()
        self.receiving = ReceiveBudget()
        self.refusals = 0
        self.relays = 0  # connections to other brokers on behalf of clients
        self.strangers = SparingLog(logger, broker.clock.monotonic)
        self._peers = 0
        self._antechamber: dict[Session, float] = {}  # since when

    # --- descriptors ----------------------------------------------------------------------------

    def check_descriptors(self, logs: int) -> None:
        """LimitExceeded if the files of so many more logs could take those that others need."""
        limit = descriptor_limit()
        left = self._spare - max(_part(limits.DESCRIPTORS_CLIENTS_MIN), len(self.sessions) + self.relays)
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
        return min(self._broker.config.connections_max, max(_part(limits.DESCRIPTORS_CLIENTS_MIN), self._spare))

    @property
    def http_max(self) -> int:
        """How many connections the HTTP side may have."""
        return _part(limits.HTTP_CONNECTIONS_MAX)

    @property
    def _spare(self) -> int:
        """Descriptors for clients and for more logs."""
        logs = len(self._broker.replicas.partitions)
        return descriptor_limit() - _part(limits.DESCRIPTORS_RESERVED) - self.http_max - logs

    @property
    def _clients(self) -> int:
        return len(self.sessions) + self.relays - self._peers - len(self._antechamber)

    # --- coming and going -----------------------------------------------------------------------

    def started(self, session: Session) -> None:
        """Somebody connected."""
        if self._broker.stopping:
            session.refused(Closed("This broker is stopping.", hint="Connect to another broker."))
            return
        full = self._clients >= self.clients_max
        if full and self._broker.replicas.single:
            session.refused(self._full())
            return
        self.sessions.add(session)
        if full:
            if len(self._antechamber) >= limits.ANTECHAMBER_CONNECTIONS:
                self._turn_away(next(iter(self._antechamber)))
            self._antechamber[session] = self._broker.clock.monotonic()

    def greeted(self, session: Session) -> None:
        """It is a client, and no broker; Closed if there is no room for it."""
        if session in self._antechamber:
            raise self._full()

    def proved(self, session: Session) -> None:
        """It is another broker: there is always room for those."""
        self._antechamber.pop(session, None)
        session.connection.favoured = True
        self._peers += 1

    def ended(self, session: Session) -> None:
        if session in self.sessions:
            self.sessions.discard(session)
            self._antechamber.pop(session, None)
            self._peers -= bool(session.peer)

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
        for session in list(self.sessions):
            if lagged:
                session.excuse(now)
            session.sweep(now)
        self.receiving.reclaim(now)
        self._drop_deaf(now)
        self.strangers.tick()

    def _drop_deaf(self, now: float) -> None:
        """What all clients together do not read is bounded; who has not read for longest goes first."""
        unsent = {s: size for s in self.sessions if not s.peer and (size := s.connection.unsent_bytes)}
        total = sum(unsent.values())
        for session in sorted(unsent, key=lambda s: s.deaf_since):
            if total <= limits.UNSENT_TOTAL_BYTES_MAX or now - session.deaf_since < _DEAF_S:
                return
            session.drop_deaf("clients that do not read hold too much memory")
            total -= unsent[session]
