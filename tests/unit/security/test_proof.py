"""A proof is good for one connection, one direction, one purpose, one pair of brokers and one cluster."""

import hashlib
import hmac

import msgspec
import pytest

from stentor.security.proof import NONCE_BYTES, PROOF_BYTES, Claim, new_nonce, new_secret, prove, proving_secret

SECRET = bytes(range(32))
CLAIM = Claim("cluster", "control", "b1", "b2", b"d" * 32, b"a" * 32)


def test_a_proof_is_found_by_the_secret_that_made_it():
    other = new_secret()
    proof = prove(SECRET, "dialler", CLAIM)
    assert len(proof) == PROOF_BYTES
    assert proving_secret([other, SECRET], "dialler", CLAIM, [proof]) == SECRET
    assert proving_secret([other], "dialler", CLAIM, [proof]) is None
    assert proving_secret([], "dialler", CLAIM, [proof]) is None


def test_one_of_several_proofs_is_enough():
    proofs = [prove(new_secret(), "acceptor", CLAIM), prove(SECRET, "acceptor", CLAIM)]
    assert proving_secret([SECRET], "acceptor", CLAIM, proofs) == SECRET


@pytest.mark.parametrize(
    "other",
    [
        {"cluster_id": "cluste"},
        {"purpose": "data"},
        {"dialler": "b3"},
        {"acceptor": "b3"},
        {"dialler": "b2", "acceptor": "b1"},
        {"dialler_nonce": b"D" * 32},
        {"acceptor_nonce": b"A" * 32},
        {"dialler_nonce": b"a" * 32, "acceptor_nonce": b"d" * 32},
        {"listener": "public"},
    ],
    ids=str,
)
def test_a_proof_of_another_claim_is_none(other):
    proof = prove(SECRET, "dialler", CLAIM)
    assert proving_secret([SECRET], "dialler", msgspec.structs.replace(CLAIM, **other), [proof]) is None


@pytest.mark.parametrize("role", ["acceptor", "relay"])
def test_a_proof_cannot_be_reflected(role):
    assert proving_secret([SECRET], "dialler", CLAIM, [prove(SECRET, role, CLAIM)]) is None


@pytest.mark.parametrize("proof", [b"", bytes(32), bytes(31), b"x" * 32])
def test_rubbish_proves_nothing(proof):
    assert proving_secret([SECRET], "dialler", CLAIM, [proof]) is None
    assert proving_secret([SECRET], "dialler", CLAIM, []) is None


def test_letters_cannot_move_from_one_part_of_a_claim_to_the_next():
    one = msgspec.structs.replace(CLAIM, dialler="b1b", acceptor="2")
    two = msgspec.structs.replace(CLAIM, dialler="b1", acceptor="b2")
    assert one.text("dialler") != two.text("dialler")


def test_the_proof_is_the_hmac_that_the_specification_names():
    parts = [b"stentor peer proof 1", b"dialler", b"control", b"cluster", b"b1", b"b2", b"d" * 32, b"a" * 32, b""]
    text = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
    assert prove(SECRET, "dialler", CLAIM) == hmac.new(SECRET, text, hashlib.sha256).digest()


def test_nonces_and_secrets_do_not_repeat():
    assert len({new_nonce() for _ in range(1000)} | {new_secret() for _ in range(1000)}) == 2000
    assert len(new_nonce()) == NONCE_BYTES
