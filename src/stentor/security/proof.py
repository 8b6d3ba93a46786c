"""How a broker proves to another that it belongs to the cluster, without telling the cluster's secret (S6).

    dialler ── HELLO: who I am, what for, my nonce ─────────────────────────► acceptor
    dialler ◄── WELCOME: its nonce, a proof for each secret it accepts ────── acceptor
    dialler ── PROVE: a proof with the secret that both know; then as a peer ► acceptor

A proof is an HMAC-SHA256 under the secret. It covers everything that makes this connection this one: who proves
(dialler, acceptor or relay), both nonces, both ids, the purpose and the cluster. So a proof that was overheard is of
no use on another connection, nor in the other direction, nor for another purpose, id or cluster.

What it does not do: nothing binds the frames that follow to the proof. Whoever sits between two brokers can pass the
proofs on and then say what it likes; that needs TLS.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

SECRET_BYTES: Final = 32
NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32

Role = Literal["dialler", "acceptor", "relay"]

_LABEL: Final = b"stentor peer proof 1"


class Claim(msgspec.Struct, frozen=True):
    """What a proof is about: one connection between two brokers."""

    cluster_id: str
    purpose: str  # control, data, or relay
    dialler: str
    acceptor: str
    dialler_nonce: bytes
    acceptor_nonce: bytes = b""  # a relay's greeting has none: it proves only which listener a client came in by
    listener: str = ""  # of a relay

    def text(self, role: Role) -> bytes:
        """What is signed: every part with its length before it, so that no two claims have the same text."""
        parts = (
            _LABEL,
            role.encode(),
            self.purpose.encode(),
            self.cluster_id.encode(),
            self.dialler.encode(),
            self.acceptor.encode(),
            self.dialler_nonce,
            self.acceptor_nonce,
            self.listener.encode(),
        )
        return b"".join(len(part).to_bytes(4, "little") + part for part in parts)


def new_secret() -> bytes:
    """A cluster's secret."""
    return secrets.token_bytes(SECRET_BYTES)


def new_nonce() -> bytes:
    """A number that is used once: for one side of one connection."""
    return secrets.token_bytes(NONCE_BYTES)


def prove(secret: bytes, role: Role, claim: Claim) -> bytes:
    """The proof of a claim."""
    return hmac.digest(secret, claim.text(role), "sha256")


def proving_secret(known: Sequence[bytes], role: Role, claim: Claim, proofs: Sequence[bytes]) -> bytes | None:
    """Which of the known secrets one of these proofs was made with; None if none of them proves the claim."""
    for secret in known:
        wanted = prove(secret, role, claim)
        if any(hmac.compare_digest(wanted, proof) for proof in proofs):
            return secret
    return None
