"""Copies of logs that were replaced stay for a while, and as long as the chain is not full without them."""

import msgspec
import pytest

from stentor.core.records import HeldRecord
from stentor.testing import broker

AGE_S = 3_600


@pytest.fixture
def local(request):
    with broker(aside_age_s=getattr(request, "param", AGE_S)) as started, started.client() as client:
        client.create_topic("t")
        yield started


def key(local):
    return (local.inner.parts.ground.catalogue.topics["t"].record.id, 0)


def put_aside(local, topic_id, partition=0):
    """A copy that was replaced just now."""
    directory = local.inner.parts.ground.directory
    place = directory.partition_directory(topic_id, partition)
    kept = place.rename(place.with_suffix(".kept")) if place.exists() else None
    place.mkdir()
    (place / "00000000000000000000.log").write_bytes(b"something")
    aside = directory.put_aside(topic_id, partition)
    if kept is not None:
        kept.rename(place)
    return aside


def later(local, monkeypatch, seconds):
    now_us = local.inner.parts.ground.environment.clock.now_us
    monkeypatch.setattr(local.inner.parts.ground.environment.clock, "now_us", lambda: now_us() + seconds * 1_000_000)


def test_a_copy_that_was_replaced_long_ago_goes_and_a_younger_one_stays(local, monkeypatch):
    aside = put_aside(local, *key(local))
    local.inner.parts.letting_go.clear_aside()
    assert aside.exists()
    later(local, monkeypatch, AGE_S + 1)
    local.inner.parts.letting_go.clear_aside()
    assert not aside.exists()


@pytest.mark.parametrize("local", [0], indirect=True)
def test_if_the_operator_wants_it_they_stay_for_ever(local, monkeypatch):
    aside = put_aside(local, *key(local))
    later(local, monkeypatch, 10**9)
    local.inner.parts.letting_go.clear_aside()
    assert aside.exists()


def test_a_copy_stays_while_the_chain_is_short(local, monkeypatch):
    aside = put_aside(local, *key(local))
    later(local, monkeypatch, AGE_S + 1)
    chains = local.inner.parts.ground.catalogue.chains
    held = chains[key(local)]
    short = HeldRecord(msgspec.structs.replace(held.record, factor=2), held.revision)
    monkeypatch.setitem(chains, key(local), short)
    local.inner.parts.letting_go.clear_aside()
    assert aside.exists()


def test_of_a_topic_that_nobody_knows_only_what_was_deleted_goes(local, monkeypatch):
    lost, deleted = put_aside(local, 1), put_aside(local, 2)
    local.inner.parts.ground.catalogue.deleted[2] = 1
    later(local, monkeypatch, AGE_S + 1)
    local.inner.parts.letting_go.clear_aside()
    assert lost.exists()
    assert not deleted.exists()


def test_what_is_not_ours_stays(local, monkeypatch):
    aside = put_aside(local, *key(local))
    (aside.parent / "notes").mkdir()
    later(local, monkeypatch, AGE_S + 1)
    local.inner.parts.letting_go.clear_aside()
    assert [path.name for path in aside.parent.iterdir()] == ["notes"]
