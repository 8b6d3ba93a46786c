"""The cluster's secret and feature level: made, kept, rotated, raised; and what a restored store does to them."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from stentor.broker.catalogue import broker_key, decode_broker, encode
from stentor.broker.cluster.trust import LEVEL_KEY, LEVEL_KNOWN, PEERS_PROVE, SECRET_KEY, rotate
from stentor.broker.sessions.peer_session import PeerSession
from stentor.coordination.etcd import open_etcd
from stentor.core.controller import BrokerRecord
from stentor.core.membership import Heartbeat
from stentor.errors import InvalidArgument
from stentor.security.cluster_secret import ClusterSecret, decode_secret, first_secret
from stentor.security.cluster_secret import encode as encode_secret
from stentor.storage.directory import JOURNAL_FILE, SECRET_FILE
from stentor.storage.journal import load_journal
from stentor.testing import LocalBroker, broker
from stentor.testing.etcd import LocalEtcd
from stentor.wire import frames, messages, peer
from stentor.wire.frames import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path

NEWEST = str(LEVEL_KNOWN).encode()
OLD = BrokerRecord("old", 1, address="127.0.0.1:9", version="0.1")  # it says nothing of levels


class Store:
    """What is in one cluster's part of etcd."""

    def __init__(self, url: str) -> None:
        self.url = url

    def do(self, work: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        async def run() -> Any:
            store = open_etcd(self.url)
            try:
                return await work(store)
            finally:
                await store.close()

        return asyncio.run(run())

    def get(self, key: str) -> bytes | None:
        found = self.do(lambda store: store.get(key))
        return None if found is None else found.value

    def put(self, **entries: bytes) -> None:
        self.do(lambda store: store.swap(expect={}, put={k.replace("__", "/"): v for k, v in entries.items()}))

    def delete(self, *keys: str) -> None:
        self.do(lambda store: store.swap(expect={}, put={}, delete=keys))

    @property
    def secret(self) -> ClusterSecret:
        value = self.get(SECRET_KEY)
        assert value is not None
        return decode_secret(value)


@pytest.fixture
def store(etcd: LocalEtcd, request: pytest.FixtureRequest) -> Store:
    return Store(f"{etcd.url}/{abs(hash(request.node.nodeid))}")


@contextmanager
def started(store: Store, data: Path | None = None, broker_id: str = "b0", **settings: Any) -> Iterator[LocalBroker]:
    with broker(data, coordination=store.url, broker_id=broker_id, **settings) as local:
        yield local


def greeting(local: LocalBroker, name: str = "old") -> bytes:
    """What a broker of the version before says first."""
    hello = messages.Hello(
        version_min=1,
        version_max=1,
        broker=name,
        cluster_id=local.inner.parts.ground.identity.cluster_id,
        purpose="control",
    )
    return frames.frame(Kind.HELLO, 0, messages.encode(hello))


# --- a new cluster ------------------------------------------------------------------------------


def test_a_new_cluster_has_a_secret_and_the_newest_level_at_once(store, tmp_path):
    with started(store, tmp_path / "b0") as local:
        assert local.inner.parts.cluster.trust.all_prove
        assert local.inner.parts.cluster.trust.secrets == store.secret.valid
        assert store.get(LEVEL_KEY) == NEWEST
        assert (tmp_path / "b0" / SECRET_FILE).stat().st_mode & 0o777 == 0o600


def test_all_brokers_of_a_cluster_have_the_same_secret(store, wait_until):
    with started(store) as one, started(store, broker_id="b1") as two:
        assert one.inner.parts.cluster.trust.secrets == two.inner.parts.cluster.trust.secrets
        for local, other in ((one, "b1"), (two, "b0")):
            peers = local.inner.parts.cluster.peers
            wait_until(lambda peers=peers, other=other: peers.is_connected(other), "the links")
            proven = {session.proven_by for session in peers_of(local, other)}
            assert proven <= set(one.inner.parts.cluster.trust.secrets)


def test_a_single_broker_has_no_secret(tmp_path):
    with broker(tmp_path) as local:
        assert local.inner.parts.cluster.trust.secrets == ()
        assert not (tmp_path / SECRET_FILE).exists()


# --- the level ----------------------------------------------------------------------------------


def test_brokers_of_the_version_before_are_taken_at_their_word_until_the_last_is_upgraded(
    store, raw, wait_until, caplog
):
    caplog.set_level(logging.WARNING)
    store.put(identity__cluster=b"c", brokers__old=encode(OLD))
    with started(store) as local:
        trust = local.inner.parts.cluster.trust
        assert not trust.all_prove
        old = raw(local.url)
        old.send_bytes(greeting(local))
        assert old.receive()[0] == Kind.WELCOME
        heartbeat = frames.frame(Kind.PEER, 0, peer.encode([Heartbeat("old", 1)]))

        def is_heard() -> bool:
            old.send_bytes(heartbeat)  # again and again, as a broker does: one counts only for a moment
            return local.inner.parts.cluster.control.view("old") == "heard"

        wait_until(is_heard, "the old broker is heard")
        told = "broker old cannot prove who it is"
        wait_until(lambda: told in caplog.text, "operators are told")
        assert caplog.text.count(told) == 1
        stranger = raw(local.url)
        stranger.send_bytes(greeting(local, "stranger"))
        assert stranger.refusal().code == "not_ready"
        store.put(brokers__old=encode(msgspec.structs.replace(OLD, level=PEERS_PROVE)))
        wait_until(lambda: trust.all_prove, "the level rises")
        assert store.get(LEVEL_KEY) == b"1"
        assert old.refusal().code == "peer_refused"
        again = raw(local.url)
        again.send_bytes(greeting(local))
        assert again.refusal().code == "peer_refused"
        store.put(brokers__old=encode(OLD))
        wait_until(lambda: not local.inner.parts.ground.catalogue.brokers["old"].level, "the old version is back")
        assert trust.all_prove


def test_who_says_in_the_store_that_it_can_prove_itself_must_whatever_the_level(store, raw, wait_until):
    """Else, as long as one broker is of the version before, a client could pass for all the others."""
    new = msgspec.structs.replace(OLD, id="new", level=PEERS_PROVE)
    store.put(identity__cluster=b"c", brokers__old=encode(OLD), brokers__new=encode(new))
    with started(store) as local:
        pretender = raw(local.url)
        pretender.send_bytes(greeting(local, "new"))
        assert pretender.refusal().code == "peer_refused"
        early = raw(local.url)
        early.send_bytes(greeting(local))
        assert early.receive()[0] == Kind.WELCOME
        store.put(brokers__third=encode(msgspec.structs.replace(OLD, id="third")))
        store.put(brokers__old=encode(msgspec.structs.replace(OLD, level=PEERS_PROVE)))
        assert early.refusal().code == "peer_refused"
        assert not local.inner.parts.cluster.trust.all_prove


def test_a_broker_registers_which_level_it_knows(store):
    with started(store):
        record = store.get(broker_key("b0"))
        assert record is not None
        assert decode_broker(record).level == LEVEL_KNOWN


def test_a_level_never_goes_down(store, tmp_path, wait_until):
    with started(store, tmp_path / "b0"):
        pass
    store.delete(LEVEL_KEY)
    store.put(brokers__old=encode(OLD))
    with started(store, tmp_path / "b0") as local:
        assert local.inner.parts.cluster.trust.all_prove
        wait_until(lambda: store.get(LEVEL_KEY) == NEWEST, "the store has it again")


# --- rotation -----------------------------------------------------------------------------------


def test_a_rotated_secret_reaches_running_brokers_and_ends_no_connection(store, wait_until):
    with started(store) as one, started(store, broker_id="b1") as two:
        first = store.secret.current
        for local, other in ((one, "b1"), (two, "b0")):
            wait_until(lambda local=local, other=other: len(peers_of(local, other)) == 2, "the links")
        before = set(one.inner.parts.admission.sessions)
        store.do(lambda inner: rotate(inner, 1))
        second = store.secret
        assert second.previous == first
        for local in (one, two):
            wait_until(
                lambda local=local: local.inner.parts.cluster.trust.secrets == second.valid, "the rotation is heard"
            )
        assert set(one.inner.parts.admission.sessions) == before
        store.do(lambda inner: rotate(inner, 10**12))
        wait_until(lambda: one.inner.parts.cluster.trust.secrets == store.secret.valid, "the second rotation is heard")
        assert first not in one.inner.parts.cluster.trust.secrets
        for local, other in ((one, "b1"), (two, "b0")):
            wait_until(lambda local=local, other=other: proven_now(local, other), "all have proved themselves anew")


def peers_of(local: LocalBroker, other: str) -> list[PeerSession]:
    sessions = local.inner.parts.admission.sessions
    return [session for session in sessions if isinstance(session, PeerSession) and session.peer == other]


def proven_now(local: LocalBroker, other: str) -> bool:
    sessions = peers_of(local, other)
    return len(sessions) == 2 and all(
        session.proven_by in local.inner.parts.cluster.trust.secrets for session in sessions
    )


def test_brokers_that_have_and_have_not_heard_of_a_rotation_still_know_each_other(store, wait_until):
    with started(store) as one, started(store, broker_id="b1") as two:
        wait_until(lambda: one.inner.parts.cluster.peers.is_connected("b1"), "the links")
        held = one.inner.parts.cluster.trust._secret
        assert held is not None
        one.inner.parts.cluster.trust._secret = held.rotated(1)  # it alone has heard
        for local, other in ((one, "b1"), (two, "b0")):
            local.inner.loop.call_soon_threadsafe(local.inner.parts.cluster.peers.restart, other)
        for local, other in ((one, "b1"), (two, "b0")):
            wait_until(lambda local=local, other=other: proven_now(local, other), "they are connected again")


def test_there_is_nothing_to_rotate_where_there_is_no_cluster(store):
    with pytest.raises(InvalidArgument, match="no cluster"):
        store.do(lambda inner: rotate(inner, 1))


# --- the file and the store ---------------------------------------------------------------------


def test_the_file_is_what_a_broker_has_without_the_store(store, tmp_path):
    with started(store, tmp_path / "b0"):
        secrets = store.secret.valid
    from stentor.broker.cluster.store_follower import FollowedStore
    from stentor.broker.cluster.trust import Trust

    nothing = FollowedStore(store=None, catalogue=None, rollback=None, follower=None)
    trust = Trust(None, followed=nothing, background=None)
    trust.open(tmp_path / "b0" / SECRET_FILE)
    assert trust.secrets == secrets
    assert trust.all_prove


def test_a_store_without_a_secret_gets_that_of_the_file(store, tmp_path):
    with started(store, tmp_path / "b0"):
        secret = store.secret
    store.delete(SECRET_KEY)
    with started(store, tmp_path / "b0") as local:
        assert store.secret == secret
        assert local.inner.parts.cluster.trust.secrets == secret.valid


def test_the_store_wins_over_the_file_and_that_is_said(store, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    with started(store, tmp_path / "b0"):
        pass
    other = first_secret()
    store.put(identity__secret=encode_secret(other))
    with started(store, tmp_path / "b0") as local:
        assert local.inner.parts.cluster.trust.secrets == other.valid
    assert "the store's is used" in caplog.text


def test_after_a_restore_that_was_accepted_the_secret_of_the_file_is_valid_until_the_next_start(
    store, tmp_path, wait_until
):
    with started(store, tmp_path / "b0") as local:
        kept = store.secret.current
        local.inner.parts.cluster.rollback.revision = 2**40  # of a store of later days, which is lost
        wait_until(lambda: load_journal(tmp_path / "b0" / JOURNAL_FILE).store_revision == 2**40, "it is remembered")
    other = first_secret()
    store.put(identity__secret=encode_secret(other))
    with started(store, tmp_path / "b0", accept_older_store=True) as local:
        assert local.inner.parts.cluster.trust.secrets == (other.current, kept)
    with started(store, tmp_path / "b0") as local:
        assert local.inner.parts.cluster.trust.secrets == other.valid


@pytest.mark.parametrize("content", [b"", b"rubbish" * 20])
def test_a_damaged_file_is_replaced_by_what_the_store_has(store, tmp_path, content):
    with started(store, tmp_path / "b0"):
        pass
    (tmp_path / "b0" / SECRET_FILE).write_bytes(content)
    with started(store, tmp_path / "b0") as local:
        assert local.inner.parts.cluster.trust.secrets == store.secret.valid
    with started(store, tmp_path / "b0") as local:
        assert local.inner.parts.cluster.trust.secrets == store.secret.valid


def test_rubbish_in_the_store_changes_nothing_for_running_brokers(store, wait_until, caplog):
    with started(store) as local:
        secrets = local.inner.parts.cluster.trust.secrets
        store.put(identity__secret=b"rubbish")
        wait_until(lambda: "stays in use" in caplog.text, "it is said")
        assert local.inner.parts.cluster.trust.secrets == secrets


# --- the other side -----------------------------------------------------------------------------


def test_a_listener_at_a_brokers_address_that_proves_nothing_is_told_nothing(store, wait_until):
    """As if its address had been given to another machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        fake = msgspec.structs.replace(OLD, id="fake", address=f"127.0.0.1:{server.getsockname()[1]}", level=1)
        with started(store) as local:
            store.put(brokers__fake=encode(fake))
            connection, _ = server.accept()
            connection.settimeout(10)
            length = frames.HEADER.unpack(connection.recv(frames.HEADER_BYTES, socket.MSG_WAITALL))[0]
            connection.recv(length, socket.MSG_WAITALL)
            info = msgspec.structs.replace(local.inner.info(), id="fake")
            welcome = messages.Welcome(version=1, broker=info, nonce=b"n" * 32, proofs=[b"p" * 32])
            connection.sendall(frames.frame(Kind.WELCOME, 0, messages.encode(welcome)))
            with suppress(ConnectionResetError):
                assert connection.recv(1) == b""
            assert not local.inner.parts.cluster.peers.is_connected("fake")
            connection.close()


def test_a_broker_whose_record_lost_its_level_registers_again(store, wait_until):
    """A broker of the version before that drains it writes the record without the level."""
    with started(store) as local:
        record = msgspec.structs.replace(local.inner.parts.ground.catalogue.brokers["b0"], level=0)
        store.put(brokers__b0=encode(record))
        wait_until(lambda: decode_broker(store.get(broker_key("b0"))).level == LEVEL_KNOWN, "it is registered again")
