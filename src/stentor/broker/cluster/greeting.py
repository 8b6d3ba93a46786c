"""How two brokers greet each other: both prove that they belong to the cluster before either counts (S6).

`security/proof.py` has the picture. `Dialling` is the side that dials, `Arrival` the side that accepts; a `Relay` signs
only which listener its client came in by. It costs no round trip: the dialler's proof goes ahead of its first message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from stentor._version import __version__
from stentor.broker.cluster.trust import refused
from stentor.errors import NotReady, ProtocolError
from stentor.security.proof import NONCE_BYTES, Claim, new_nonce, prove, proving_secret
from stentor.wire import frames, messages, peer

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor.broker.catalogue import Catalogue
    from stentor.broker.cluster.trust import Trust
    from stentor.broker.environment import BrokerIdentity

_RELAY: Final = "relay"


class Arrival:
    """A broker that dials this one, until it has proved who it is. PeerRefused if it cannot be."""

    def __init__(self, identity: BrokerIdentity, trust: Trust, hello: messages.Hello) -> None:
        self.name = hello.broker
        self.purpose = hello.purpose
        self._trust = trust
        self._claim: Claim | None = None  # None: of a version that proves nothing
        if identity.alone:
            raise refused("This broker is on its own and takes no other brokers.")
        if hello.cluster_id != identity.cluster_id:
            raise refused(f"Broker {hello.broker} belongs to another cluster than this one.")
        if hello.broker == identity.broker_id:
            raise refused(f"{hello.broker} is the id of the broker that was dialled.")
        if hello.purpose not in (peer.CONTROL, peer.DATA):
            raise ProtocolError(f"A broker connects for control or data, not for {hello.purpose!r}.")
        if len(hello.nonce) == NONCE_BYTES and trust.secrets:
            self._claim = Claim(
                identity.cluster_id, hello.purpose, hello.broker, identity.broker_id, hello.nonce, new_nonce()
            )
        elif not trust.secrets:
            raise NotReady("This broker does not know its cluster's secret yet.", hint="Try again in a moment.")
        elif trust.must_prove(hello.broker):
            raise refused(f"Broker {hello.broker} does not prove who it is.")

    @property
    def proves(self) -> bool:
        """Whether it is to prove itself; an older version is taken at its word while the feature level allows it."""
        return self._claim is not None

    def challenge(self, welcome: messages.Welcome) -> messages.Welcome:
        """The acceptor's own proofs, by every secret that it accepts: the dialler may know only one of them."""
        claim = self._claim
        if claim is None:
            return welcome
        proofs = [prove(secret, "acceptor", claim) for secret in self._trust.secrets]
        return msgspec.structs.replace(welcome, nonce=claim.acceptor_nonce, proofs=proofs)

    def proven_by(self, body: memoryview) -> bytes:
        """The secret that a PROVE frame was made with."""
        claim, proof = self._claim, messages.decode(body, messages.Prove).proof
        secret = None if claim is None else proving_secret(self._trust.secrets, "dialler", claim, [proof])
        if secret is None:
            raise refused(f"Broker {self.name} does not prove who it is.")
        return secret

    def check_registered(self, catalogue: Catalogue, look: Callable[[], None]) -> None:
        """A broker registers before it dials, so an unknown one is looked up in the store."""
        if self.name not in catalogue.brokers:
            look()
            raise NotReady(
                f"Broker {self.name} is not registered as far as this broker knows.",
                hint="It looks into the coordination store now; try again in a moment.",
            )


class Dialling:
    """One connection that this broker dials to another, until both have proved themselves."""

    def __init__(self, identity: BrokerIdentity, trust: Trust, name: str, purpose: str) -> None:
        self._trust = trust
        self._claim = Claim(identity.cluster_id, purpose, identity.broker_id, name, new_nonce())
        self.proven_by = b""

    def hello(self) -> bytes:
        return messages.encode(
            messages.Hello(
                version_min=frames.PROTOCOL_VERSION_MIN,
                version_max=frames.PROTOCOL_VERSION,
                name=f"broker {self._claim.dialler}",
                library=f"stentor {__version__}",
                features=[*frames.FEATURES, *frames.PEER_FEATURES],
                broker=self._claim.dialler,
                cluster_id=self._claim.cluster_id,
                purpose=self._claim.purpose,
                nonce=self._claim.dialler_nonce,
            )
        )

    def answer(self, welcome: messages.Welcome) -> bytes | None:
        """Check the acceptor's proofs; the body of PROVE, or None for a broker of an older version that needs none."""
        trust, name = self._trust, self._claim.acceptor
        if len(welcome.nonce) != NONCE_BYTES:
            if trust.must_prove(name):
                raise refused(f"Broker {name} does not prove who it is.")
            trust.tell_unproven(name)
            return None
        claim = msgspec.structs.replace(self._claim, acceptor_nonce=welcome.nonce)
        secret = proving_secret(trust.secrets, "acceptor", claim, welcome.proofs)
        if secret is None:
            raise refused(f"Broker {name} does not prove who it is.")
        self.proven_by = secret
        return messages.encode(messages.Prove(proof=prove(secret, "dialler", claim)))


def relayed(identity: BrokerIdentity, trust: Trust, hello: messages.Hello, listener: str) -> messages.Hello:
    """What a relay says to the target: the client's own words, and the listener that it came in by, signed.

    The signature can be replayed; all it is good for is to be told the addresses of that listener.
    """
    nonce, proof = b"", b""
    if trust.secrets:
        claim = Claim(identity.cluster_id, _RELAY, identity.broker_id, hello.target, new_nonce(), listener=listener)
        nonce, proof = claim.dialler_nonce, prove(trust.secrets[0], "relay", claim)
    return messages.Hello(
        version_min=hello.version_min,
        version_max=hello.version_max,
        name=hello.name,
        library=hello.library,
        features=hello.features,
        listener=listener,
        relay=identity.broker_id,
        nonce=nonce,
        proof=proof,
        holder=hello.holder,
    )


def check_relayable(hello: messages.Hello) -> None:
    """S6: a relay passes on nothing that only brokers may say."""
    if hello.broker or hello.cluster_id or hello.purpose or hello.relay or hello.listener or hello.nonce or hello.proof:
        raise refused("A greeting that is passed on to another broker may not speak for one.")


def listener_of(identity: BrokerIdentity, trust: Trust, hello: messages.Hello, own: str) -> str:
    """By which listener a client came in: by this broker's own, unless a broker that passed it on proves another."""
    if not hello.listener:
        return own
    claim = Claim(identity.cluster_id, _RELAY, hello.relay, identity.broker_id, hello.nonce, listener=hello.listener)
    proven = proving_secret(trust.secrets, "relay", claim, [hello.proof]) is not None
    return hello.listener if proven or not (trust.all_prove or identity.alone) else own
