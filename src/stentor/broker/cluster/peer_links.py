"""The connections to the other brokers: dialled by us, twice each, for as long as they are registered.

Everything this broker tells another goes over the connections it dialled itself; what others say comes in on
theirs (`session.py`). A connection that breaks is dialled again at once: a refusal means that no process is
there, which is the fast way to know that a broker is dead (C15).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from stentor import limits
from stentor.broker.cluster.greeting import Dialling
from stentor.errors import PeerRefused, StentorError
from stentor.transport.connection import Connection
from stentor.transport.dial import dial, jittered_s
from stentor.wire import frames, messages, peer
from stentor.wire.frames import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stentor.broker.cluster.trust import Trust
    from stentor.broker.environment import BrokerIdentity, Environment
    from stentor.core.chain_messages import PartitionMessage
    from stentor.core.records import Key

logger = logging.getLogger(__name__)

_FRAME_BYTES_MAX = 1024 * 1024
"""What is said is packed into frames of about this size; a single message may be larger."""

_GATHERED_BYTES_MAX = 512 * 1024
"""More than this is written at once instead of at the end of the turn."""


class Woken(Protocol):
    """Something that sends on a link for as long as the link takes it."""

    def wake(self) -> None: ...


class PeerLink:
    """One dialled connection to one other broker, for one purpose; dialled again whenever it breaks."""

    def __init__(
        self, environment: Environment, name: str, address: str, purpose: str, prove: Callable[[str, str], Dialling]
    ) -> None:
        self.name = name
        self.address = address
        self.purpose = purpose
        self._feeds: set[Woken] = set()
        self.greeted = False
        self.features: frozenset[str] | None = None  # what it knows beyond the version; None before it has greeted
        self.on_greeted: Callable[[PeerLink], None] = lambda _: None
        self.on_refused: Callable[[PeerLink], None] = lambda _: None
        self.coalescing = environment.coalescing
        self._turns = environment.turns
        self._prove = prove
        self._loop = environment.loop
        self._connection: Connection | None = None
        self._dialling: Dialling | None = None
        self._told = ""
        self._outbox: list[peer.PeerMessage] = []  # said after everything in `_buffers`
        self._buffers: list[bytes] = []
        self._buffered_bytes = 0
        self._closed = False
        self._lost = asyncio.Event()
        self._task = self._loop.create_task(self._keep())

    def join(self, feed: Woken) -> None:
        """It is woken whenever this link takes more."""
        self._feeds.add(feed)

    def leave(self, feed: Woken) -> None:
        self._feeds.discard(feed)

    @property
    def writable(self) -> bool:
        return self.greeted and self._connection is not None and self._connection.writable

    # --- sending --------------------------------------------------------------------------------

    def send(self, message: peer.PeerMessage) -> None:
        """Leaves at the end of this turn of the loop; lost if there is no connection."""
        if not self.greeted:
            return
        self._outbox.append(message)
        self.coalescing.send(self._flush)

    def write(self, buffers: Sequence[bytes], size: int) -> None:
        """Batches; they leave at the end of this turn too, after what was said before them."""
        if not self.greeted:
            return
        self._pack()
        self._buffers.extend(buffers)
        self._buffered_bytes += size
        if self._buffered_bytes > _GATHERED_BYTES_MAX:
            self._flush()  # so that `writable` tells the truth to the next feed
        else:
            self.coalescing.send(self._flush)

    def _flush(self) -> None:
        self._pack()
        buffers, self._buffers, self._buffered_bytes = self._buffers, [], 0
        if buffers and self._connection is not None:
            self._connection.write(buffers)

    def _pack(self) -> None:
        """What was said becomes one frame."""
        if self._outbox:
            outbox, self._outbox = self._outbox, []
            self._pack_messages(outbox)

    def _pack_messages(self, said: list[peer.PeerMessage]) -> None:
        """One frame, unless it would be large: snapshots of many partitions may be among it."""
        body = peer.encode(said)
        if len(body) > _FRAME_BYTES_MAX and len(said) > 1:
            middle = len(said) // 2
            self._pack_messages(said[:middle])
            self._pack_messages(said[middle:])
        else:
            self._buffers.append(frames.frame(Kind.PEER, 0, body))

    # --- life -----------------------------------------------------------------------------------

    async def _keep(self) -> None:
        while not self._closed:
            try:
                await self._dial()
            except ConnectionRefusedError:
                self.on_refused(self)
            except (OSError, TimeoutError, StentorError) as error:
                logger.debug("no connection to broker %s: %s", self.name, error)
            else:
                dialled = self._loop.time()
                await self._lost.wait()
                if self._loop.time() - dialled > limits.PEER_PROVEN_S:
                    continue  # dial again at once: the answer tells whether it is dead
            await asyncio.sleep(jittered_s(0.5 * limits.PEER_HEARTBEAT_S, limits.PEER_HEARTBEAT_S))

    async def _dial(self) -> None:
        self._lost.clear()
        connection = Connection(self, turns=self._turns)
        connection.favoured, connection.name = True, f"broker {self.name}"
        await dial(self._loop, self.address, lambda: connection, self._loop.time() + limits.PEER_DIAL_S)
        self._dialling = self._prove(self.name, self.purpose)
        self._connection = connection
        connection.send(Kind.HELLO, 0, self._dialling.hello())
        self._loop.call_later(limits.HANDSHAKE_S, self._check_greeted, connection)

    def _check_greeted(self, connection: Connection) -> None:
        """Who vanished in the moment it was dialled never answers, and the system would wait for minutes."""
        if connection is self._connection and not self.greeted:
            connection.abort()

    def ping(self) -> None:
        """A sign of life on a connection that carries nothing."""
        if self.greeted and self._connection is not None:
            self._connection.send(Kind.PING, 0)

    def restart(self) -> None:
        """The other side was silent: the connection may be dead without knowing it."""
        if self.greeted:
            self._abort()

    def check(self, accepts: Callable[[str, bytes], bool]) -> None:
        """The cluster's secret or feature level changed: dial again if this was not proven by what counts now."""
        if self.greeted and self._dialling is not None and not accepts(self.name, self._dialling.proven_by):
            self._abort()

    def close(self) -> None:
        self._closed = True
        self._task.cancel()
        if self._connection is not None:
            self._connection.abort()

    # --- what the connection reports ------------------------------------------------------------

    def connected(self, connection: Connection) -> None: ...

    def frame_received(self, kind: int, flags: int, correlation: int, body: memoryview) -> None:  # noqa: ARG002
        if kind == Kind.WELCOME and not self.greeted:
            self._welcomed(messages.decode(body, messages.Welcome))
        elif kind == Kind.ERROR:
            failure: messages.Failure = messages.decode(body, messages.Failure)
            self._tell(f"broker {self.name} refused this broker: {failure.message}")

    def _welcomed(self, welcome: messages.Welcome) -> None:
        """The other side proves who it is before it is told anything; then this side does, ahead of all else."""
        if welcome.broker.id != self.name:
            self._tell(f"{self.address} is broker {welcome.broker.id}, not {self.name}")
            self._abort()
            return
        try:
            answer = None if self._dialling is None else self._dialling.answer(welcome)
        except PeerRefused as error:
            self._tell(f"broker {self.name} at {self.address} is told nothing: {error.message}")
            self._abort()
            return
        if answer is not None and self._connection is not None:
            self._connection.send(Kind.PROVE, 0, answer)
        self._told = ""
        self.features = frozenset(welcome.features)
        self.greeted = True
        self.on_greeted(self)

    def _tell(self, what: str) -> None:
        """It is dialled many times a second: the same thing is said once."""
        if what != self._told:
            self._told = what
            logger.warning("%s", what)

    def _abort(self) -> None:
        if self._connection is not None:
            self._connection.abort()

    def read_finished(self) -> None: ...

    def writable_changed(self, writable: bool) -> None:
        if writable:
            for feed in list(self._feeds):
                feed.wake()

    def refused(self, error: StentorError) -> None:
        logger.warning("broker %s sent something wrong: %s", self.name, error)
        if self._connection is not None:
            self._connection.abort()

    def disconnected(self, error: Exception | None) -> None:  # noqa: ARG002
        self.greeted = False
        self._outbox.clear()
        self._buffers, self._buffered_bytes = [], 0
        self._connection = None
        self._lost.set()


class Peers:
    """All other brokers."""

    def __init__(self, environment: Environment, identity: BrokerIdentity, trust: Trust) -> None:
        self._environment = environment
        self._identity = identity
        self._trust = trust
        self._links: dict[str, dict[str, PeerLink]] = {}
        self.on_connected: list[Callable[[str], None]] = []  # both connections to a broker are there
        self.on_refused: Callable[[str], None] = lambda _: None

    def set(self, addresses: dict[str, str]) -> None:
        """Who there is, by name and address."""
        for name in [name for name in self._links if name not in addresses]:
            self._drop(name)
        for name, address in addresses.items():
            known = self._links.get(name)
            if known is not None and known[peer.CONTROL].address != address:
                self._drop(name)
            if name not in self._links and address:
                self._links[name] = {
                    purpose: self._open(name, address, purpose) for purpose in (peer.CONTROL, peer.DATA)
                }

    def _open(self, name: str, address: str, purpose: str) -> PeerLink:
        link = PeerLink(self._environment, name, address, purpose, self._greeting)
        link.on_greeted = self._greeted
        if purpose == peer.CONTROL:
            link.on_refused = lambda link: self.on_refused(link.name)
        return link

    def _greeted(self, link: PeerLink) -> None:
        for listener in self.on_connected if self.is_connected(link.name) else ():
            listener(link.name)

    def _greeting(self, name: str, purpose: str) -> Dialling:
        return Dialling(self._identity, self._trust, name, purpose)

    def _drop(self, name: str) -> None:
        for link in self._links.pop(name).values():
            link.close()

    @property
    def names(self) -> list[str]:
        return list(self._links)

    def send(self, to: str, message: peer.PeerMessage) -> None:
        links = self._links.get(to)
        if links is not None:
            links[peer.CONTROL].send(message)

    def send_all(self, message: peer.PeerMessage) -> None:
        for links in self._links.values():
            links[peer.CONTROL].send(message)

    def tell(self, to: str, key: Key, message: PartitionMessage) -> None:
        """A message about a partition; what goes down a chain stays in order with its batches."""
        links = self._links.get(to)
        if links is not None:
            purpose = peer.DATA if isinstance(message, peer.DOWNWARDS) else peer.CONTROL
            links[purpose].send(peer.ForPartition(key[0], key[1], message))

    def knows(self, to: str, feature: str) -> bool:
        """Whether another broker is known to understand certain messages; older ones do not."""
        links = self._links.get(to)
        return links is not None and feature in (links[peer.CONTROL].features or ())

    def lacks(self, to: str, feature: str) -> bool:
        """Whether another broker is known not to understand them; nothing is known of one that was never reached."""
        links = self._links.get(to)
        features = None if links is None else links[peer.CONTROL].features
        return features is not None and feature not in features

    def data_link(self, to: str) -> PeerLink | None:
        links = self._links.get(to)
        return None if links is None else links[peer.DATA]

    def ping(self) -> None:
        for links in self._links.values():
            links[peer.DATA].ping()

    def restart(self, name: str) -> None:
        for link in self._links.get(name, {}).values():
            link.restart()

    def check(self) -> None:
        """The cluster's secret or feature level changed."""
        for links in self._links.values():
            for link in links.values():
                link.check(self._trust.accepts)

    def is_connected(self, name: str) -> bool:
        links = self._links.get(name)
        return links is not None and all(link.greeted for link in links.values())

    def close(self) -> None:
        for name in list(self._links):
            self._drop(name)
