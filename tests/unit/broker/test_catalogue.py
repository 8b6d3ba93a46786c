"""The topics and chains of a broker, and the store they are kept in."""

import asyncio

import msgspec
import pytest
from crc32c import crc32c

from stentor import limits
from stentor.broker.catalogue import Catalogue
from stentor.coordination import EmbeddedStore
from stentor.errors import CorruptData, DiskFull, FormatTooNew, InvalidArgument, TopicExists, TopicNotFound
from stentor.wire.messages import TopicSettings


class File:
    """What a store saved last, and whether saving works."""

    def __init__(self):
        self.data = None
        self.full = False

    def save(self, data):
        if self.full:
            raise DiskFull("There is no room.")
        self.data = data

    def open(self):
        return EmbeddedStore(self.data, self.save)


@pytest.fixture
def file():
    return File()


def run(work):
    return asyncio.run(work)


def test_a_swap_changes_all_keys_or_none(file):
    async def story():
        store = file.open()
        first = await store.swap(expect={"a": 0}, put={"a": b"1", "b": b"2"})
        assert first.succeeded
        assert not (await store.swap(expect={"a": 0}, put={"a": b"3", "c": b"4"})).succeeded
        assert (await store.get("a")).value == b"1"
        assert await store.get("c") is None
        second = await store.swap(expect={"a": first.revision, "c": 0}, put={"a": b"5"}, delete=("b",))
        assert second.revision > first.revision
        assert [(entry.key, entry.value) for entry in await store.range("")] == [("a", b"5")]
        assert not (await store.swap(expect={"a": first.revision}, put={})).succeeded

    run(story())


def test_what_was_swapped_is_there_after_a_restart(file):
    async def before():
        store = file.open()
        await store.swap(expect={}, put={"x/1": b"a", "x/2": b"b", "y": b"c"})
        return (await store.swap(expect={}, put={}, delete=("x/1",))).revision

    async def after(revision):
        store = file.open()
        assert [entry.key for entry in await store.range("x/")] == ["x/2"]
        assert (await store.swap(expect={}, put={"z": b""})).revision == revision + 1, "revisions go on"

    run(after(run(before())))


def test_a_swap_that_could_not_be_saved_did_not_happen(file):
    async def story():
        store = file.open()
        kept = await store.swap(expect={}, put={"a": b"1"})
        file.full = True
        with pytest.raises(DiskFull):
            await store.swap(expect={"a": kept.revision}, put={"a": b"2"})
        assert (await store.get("a")).value == b"1"
        file.full = False
        assert (await store.swap(expect={"a": kept.revision}, put={"a": b"3"})).succeeded

    run(story())


def test_a_store_that_fails_its_checksum_or_is_too_new_is_refused(file):
    run(file.open().swap(expect={}, put={"a": b"1"}))
    for at in range(len(file.data)):
        broken = bytearray(file.data)
        broken[at] ^= 1
        with pytest.raises(CorruptData, match="coordination"):
            EmbeddedStore(bytes(broken), file.save)
    for cut in (b"", file.data[:3], file.data[:-1]):
        with pytest.raises(CorruptData):
            EmbeddedStore(cut, file.save)
    newer = msgspec.msgpack.encode([99, 1, {}, "what we do not know"])
    with pytest.raises(FormatTooNew):
        EmbeddedStore(crc32c(newer).to_bytes(4, "little") + newer, file.save)


async def catalogue_of(file, incarnation=1):
    catalogue = Catalogue(file.open(), "broker-a", incarnation)
    await catalogue.load()
    return catalogue


async def make(catalogue, name, **settings):
    topic = catalogue.plan(name, TopicSettings(**settings), 1000)
    await catalogue.add(topic)
    return topic


def test_a_planned_topic_exists_once_it_was_added(file):
    async def story():
        catalogue = await catalogue_of(file)
        topic = catalogue.plan("a", TopicSettings(partitions=2), 1000)
        assert catalogue.topics == {}
        assert file.data is None or b"topics/a" not in file.data
        await catalogue.add(topic)
        assert catalogue.get("a") is topic
        assert [len(chain.chain) for chain in topic.chains] == [1, 1]
        with pytest.raises(TopicExists):
            catalogue.plan("a", TopicSettings(), 1000)

    run(story())


def test_of_two_plans_for_one_name_one_is_added(file):
    async def story():
        catalogue = await catalogue_of(file)
        one, other = (catalogue.plan("a", TopicSettings(), 1000) for _ in range(2))
        await catalogue.add(one)
        with pytest.raises(TopicExists):
            await catalogue.add(other)
        assert catalogue.get("a") is one

    run(story())


def test_every_start_opens_a_new_epoch_with_its_own_incarnation(file):
    async def start(incarnation):
        catalogue = await catalogue_of(file, incarnation)
        if "a" not in catalogue.topics:
            await make(catalogue, "a", partitions=2)
        return [(chain.epoch, chain.chain[0].incarnation, chain.chain[0].log_id) for chain in catalogue.get("a").chains]

    first, second, third = (run(start(incarnation)) for incarnation in (1, 2, 3))
    assert [epoch for epoch, _, _ in second] == [epoch + 1 for epoch, _, _ in first]
    assert [epoch for epoch, _, _ in third] == [epoch + 2 for epoch, _, _ in first]
    assert [incarnation for _, incarnation, _ in third] == [3, 3]
    assert [log for _, _, log in first] == [log for _, _, log in third], "the copy of the log is the same one"


def test_a_change_is_kept_and_a_wrong_one_is_not(file):
    async def story():
        catalogue = await catalogue_of(file)
        await make(catalogue, "a", retention_age_s=5)
        await catalogue.alter("a", {"flush": "interval"})
        with pytest.raises(InvalidArgument):
            await catalogue.alter("a", {"partitions": 9})
        await catalogue.alter("a", {"retention_age_s": None})
        again = await catalogue_of(file, 2)
        assert again.get("a").record.settings == TopicSettings(flush="interval")

    run(story())


def test_a_deleted_topic_is_remembered_until_its_files_are_gone(file):
    async def story():
        catalogue = await catalogue_of(file)
        topic = await make(catalogue, "a")
        await catalogue.delete("a")
        with pytest.raises(TopicNotFound):
            catalogue.get("a")
        again = await catalogue_of(file, 2)
        assert again.topics == {}
        assert await again.deleted_ids() == [topic.record.id]
        await again.forget_deleted([topic.record.id])
        assert await again.deleted_ids() == []
        await make(again, "a")

    run(story())


def test_a_topic_with_more_partitions_than_one_swap_takes_is_made_kept_and_deleted(file):
    async def story():
        many = 2 * limits.COORDINATION_SWAP_OPERATIONS_MAX + 1
        catalogue = await catalogue_of(file)
        topic = await make(catalogue, "a", partitions=many)
        again = await catalogue_of(file, 2)
        assert [chain.epoch for chain in again.get("a").chains] == [2] * many
        store = again._store
        held = {entry.key: entry.revision for entry in await store.range("chains/")}
        revisions = zip(range(many), again.get("a").chain_revisions, strict=True)
        assert held == {f"chains/{topic.record.id:016x}/{index}": revision for index, revision in revisions}
        await again.delete("a")
        assert list(await store.range("chains/")) == []

    run(story())


def test_a_large_topic_that_came_second_leaves_no_chains_behind(file):
    async def story():
        many = limits.COORDINATION_SWAP_OPERATIONS_MAX + 1
        catalogue = await catalogue_of(file)
        one, other = (catalogue.plan("a", TopicSettings(partitions=many), 1000) for _ in range(2))
        await catalogue.add(one)
        with pytest.raises(TopicExists):
            await catalogue.add(other)
        assert len(await catalogue._store.range("chains/")) == many

    run(story())
