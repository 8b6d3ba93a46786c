"""A connection that has not greeted yet: the one place where it is admitted and gets its principal.

It takes one small HELLO within HANDSHAKE_S, or is closed. Another broker must also prove who it is (S6); until then
nothing that it says counts. Then the connection goes to the session of its role:

    HELLO ──────────────────────────► ClientSession
    HELLO with a target ────────────► RelaySession
    HELLO of a broker ──► PROVE ────► PeerSession
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

import msgspec

from stentor import limits
from stentor.broker.catalogue import Catalogue
from stentor.broker.cluster.greeting import Arrival, check_relayable, listener_of, relayed
from stentor.broker.cluster.trust import Trust
from stentor.broker.environment import BrokerIdentity
from stentor.broker.sessions.client_session import ClientServices, ClientSession
from stentor.broker.sessions.peer_session import PeerServices, PeerSession
from stentor.broker.sessions.relay_session import RelaySession
from stentor.broker.sessions.session import Caller, Session
from stentor.core.holders import holder_of
from stentor.core.names import printable
from stentor.errors import InvalidArgument, PeerRefused, ProtocolError, VersionMismatch
from stentor.ports import Clock
from stentor.security.permissions import ANYBODY, Principal
from stentor.transport.budget import ReceiveBudget
from stentor.transport.connection import Connection
from stentor.transport.turns import Turns
from stentor.wire import frames, messages
from stentor.wire.frames import Kind

if TYPE_CHECKING:
    from collections.abc import Callable


class Admitting(Protocol):
    """Who says whether one more may come in."""

    receiving: ReceiveBudget

    def started(self, session: Session) -> None: ...
    def greeted(self, session: Session) -> None: ...
    def became(self, newcomer: Session, session: Session) -> None: ...
    def ended(self, session: Session) -> None: ...
    def note_refusal(self, text: str, *details: object) -> None: ...


class GreetingServices(msgspec.Struct, frozen=True):
    """What a newcomer's greeting is judged by, and what the sessions of each role need."""

    identity: BrokerIdentity
    trust: Trust
    catalogue: Catalogue
    clock: Clock
    admission: Admitting
    turns: Turns
    info: Callable[[str], messages.BrokerInfo]  # this broker, as those see it who came in by a listener
    look: Callable[[], None]  # into the store, for a broker that is not known
    clients: ClientServices
    peers: PeerServices
    peer_arrived: Callable[[str], None]


class Newcomer(Session):
    """Somebody who has not said who they are."""

    greeted: ClassVar[bool] = False

    def __init__(self, welcome: GreetingServices, listener: str) -> None:
        connection = Connection(
            self,
            body_bytes_max=limits.UNGREETED_BODY_BYTES_MAX,
            budget=welcome.admission.receiving,
            turns=welcome.turns,
        )
        caller = Caller(listener, welcome.clock.now_us())
        super().__init__(connection, caller, welcome.admission, welcome.clock)
        self._welcome = welcome
        self._arrival: Arrival | None = None  # a broker that has not proved itself yet
        self._became: Session | None = None

    def connected(self, connection: Connection) -> None:  # noqa: ARG002
        self._welcome.admission.started(self)

    def frame_received(self, kind: int, flags: int, correlation: int, body: memoryview) -> None:
        if self._became is not None:  # frames right behind the greeting, in the same read
            self._became.frame_received(kind, flags, correlation, body)
        elif self._discarding:
            pass
        elif self._arrival is not None:
            self._prove(self._arrival, kind, body)
        elif kind != Kind.HELLO:
            raise ProtocolError("The first frame of a connection must be HELLO.")
        else:
            self._greet(messages.decode(body, messages.Hello))

    def _greet(self, hello: messages.Hello) -> None:
        welcome, caller = self._welcome, self.caller
        version = _common_version(hello)
        caller.name, caller.library = _shown(hello.name), _shown(hello.library)
        self.connection.name = f"{'broker' if hello.broker else 'client'} {caller.name}"
        if not hello.broker:
            welcome.admission.greeted(self)
        if hello.target not in ("", welcome.identity.broker_id):
            self._relay(hello)
            return
        caller.listener = listener_of(welcome.identity, welcome.trust, hello, caller.listener)
        arrival = Arrival(welcome.identity, welcome.trust, hello) if hello.broker else None
        known = (*frames.FEATURES, *(frames.PEER_FEATURES if arrival is not None else ()))
        features: list[str] = [feature for feature in known if feature in hello.features]
        answer = messages.Welcome(version=version, broker=welcome.info(caller.listener), features=features)
        if arrival is not None:
            answer = arrival.challenge(answer)
        self._answers.append(frames.frame(Kind.WELCOME, 0, messages.encode(answer)))
        if arrival is None:
            caller.principal = ANYBODY
            caller.holder = holder_of(hello.holder)
            self._become(ClientSession(self.connection, caller, welcome.admission, welcome.clock, welcome.clients))
        elif arrival.proves:
            self._arrival = arrival
        else:
            self._arrived(arrival, b"")
            welcome.trust.tell_unproven(arrival.name)

    def _relay(self, hello: messages.Hello) -> None:
        welcome = self._welcome
        check_relayable(hello)
        record = welcome.catalogue.brokers.get(hello.target)
        if record is None:
            raise InvalidArgument(f"There is no broker {hello.target}.", object=hello.target)
        session = RelaySession(
            self.connection,
            self.caller,
            welcome.admission,
            welcome.clock,
            address=record.address,
            hello=relayed(welcome.identity, welcome.trust, hello, self.caller.listener),
            budget=welcome.admission.receiving,
            turns=welcome.turns,
        )
        self._become(session)

    def _prove(self, arrival: Arrival, kind: int, body: memoryview) -> None:
        if kind != Kind.PROVE:
            raise PeerRefused(f"Broker {arrival.name} must prove who it is before it says anything else.")
        self._arrived(arrival, arrival.proven_by(body))

    def _arrived(self, arrival: Arrival, proven_by: bytes) -> None:
        welcome, caller = self._welcome, self.caller
        arrival.check_registered(welcome.catalogue, welcome.look)
        caller.principal = Principal("broker", arrival.name)
        session = PeerSession(
            self.connection,
            caller,
            welcome.admission,
            welcome.clock,
            welcome.peers,
            purpose=arrival.purpose,
            proven_by=proven_by,
        )
        self._become(session)
        welcome.peer_arrived(arrival.name)

    def _become(self, session: Session) -> None:
        """From now on the connection is the session's."""
        self._flush_answers()
        self._became = session
        self.connection.body_bytes_max = limits.FRAME_BODY_BYTES_MAX
        self.connection.owner = session
        self._welcome.admission.became(self, session)


def _common_version(hello: messages.Hello) -> int:
    version = min(hello.version_max, frames.PROTOCOL_VERSION)
    if version < max(hello.version_min, frames.PROTOCOL_VERSION_MIN):
        raise VersionMismatch(
            f"The client speaks protocol {hello.version_min} to {hello.version_max}, this broker"
            f" {frames.PROTOCOL_VERSION_MIN} to {frames.PROTOCOL_VERSION}.",
            hint="Upgrade the older of the two.",
        )
    return version


def _shown(name: str) -> str:
    """A client's name as people see it, in logs and tables."""
    return printable(name)[: limits.CLIENT_NAME_CHARACTERS_MAX]
