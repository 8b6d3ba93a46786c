"""What happens to the files of one replica while its broker is down; the others hold everything."""

from __future__ import annotations

import shutil

import pytest
from tests.cluster.copies import log_files, positions

from stentor.client.sync_client import Client
from stentor.storage.directory import ASIDE_FOLDER, JOURNAL_FILE, partition_name
from stentor.storage.journal import load_journal

pytestmark = pytest.mark.slow

ENOUGH = 20


def recorded(broker, topic_id):
    """By partition: the synced end that the journal has."""
    content = load_journal(broker.directory / JOURNAL_FILE)
    return {partition: state.synced_end for topic, partition, state in content.replicas if topic == topic_id}


def put_aside(broker, topic_id, partition):
    return list((broker.directory / ASIDE_FOLDER).glob(f"{partition_name(topic_id, partition)}.*"))


@pytest.fixture
def downed(three, load):
    """A load, a broker of all its chains that holds something and was killed, and the topic's id."""
    with load(three) as flow:
        topic_id = flow.client.describe_topic(flow.topic).id
        name = flow.chains()[0][0]
        broker = three.brokers[name]
        flow.wait_for(
            lambda: sum(end >= ENOUGH for end in recorded(broker, topic_id).values()) == flow.partitions,
            "something on its disk",
        )
        three.kill(name)
        flow.wait_until_without(name)
        yield flow, broker, topic_id
        flow.wait_until_whole()
        flow.wait_for_acks()
    assert flow.errors == []


def test_a_truncated_file_flipped_bits_and_lost_unsynced_writes_are_fetched_again(three, downed):
    flow, broker, topic_id = downed
    ends = recorded(broker, topic_id)

    [cut_off] = log_files(broker.directory, topic_id, 0)
    at = next(start for offset, start, _ in positions(cut_off) if offset >= ENOUGH // 2)
    with cut_off.open("r+b") as file:
        file.truncate(at + 10)

    [flipped] = log_files(broker.directory, topic_id, 1)
    stop = next(stop for offset, _, stop in positions(flipped) if offset >= ENOUGH // 2)
    content = bytearray(flipped.read_bytes())
    content[stop - 3] ^= 0x10
    flipped.write_bytes(content)

    [unsynced] = log_files(broker.directory, topic_id, 2)
    at = next((start for offset, start, _ in positions(unsynced) if offset >= ends[2]), None)
    if at is not None:
        with unsynced.open("r+b") as file:
            file.truncate(at)

    three.restart(broker.name)
    flow.wait_until_whole()
    assert put_aside(broker, topic_id, 0), "the truncated copy is kept for whoever wants to look at it"
    assert put_aside(broker, topic_id, 1), "and so is the one with flipped bits"
    assert not put_aside(broker, topic_id, 2), "what only lost its unsynced end is mended in place"


def test_a_wiped_disk_is_a_new_member(three, downed):
    _, broker, _ = downed
    shutil.rmtree(broker.directory)
    three.restart(broker.name)


def test_damage_in_an_old_segment_is_found_by_a_reader_and_fetched_again(three, wait_until):
    """K2: sealed segments are not read at a start. Whoever reads the place first gets it from another member."""
    with three.client() as client:
        topic_id = client.create_topic("old-damage", partitions=1, replicas=3, segment_bytes=1 << 16).id
        for number in range(30):
            with client.producer("old-damage") as producer:
                producer.send_many([b"%d/%d " % (number, index) + bytes(1000) for index in range(20)])
        expected = [message.value for message in client.read("old-damage")]
        name = client.describe_topic("old-damage").partitions[0].chain[-1]
        broker = three.brokers[name]
        three.kill(name)
        before = len(put_aside(broker, topic_id, 0))  # a member that was slow may have been taken in anew already
        first, *others = log_files(broker.directory, topic_id, 0)
        assert len(others) > 2
        content = bytearray(first.read_bytes())
        content[positions(first)[0][2] - 3] ^= 0x10
        first.write_bytes(content)
        three.restart(name)
        wait_until(lambda: len(client.describe_topic("old-damage").partitions[0].chain) == 3, "a whole chain")
        assert len(put_aside(broker, topic_id, 0)) == before

        with Client(broker.address, read_from=lambda infos: sorted(infos, key=lambda info: info.id != name)) as picky:
            assert [message.value for message in picky.read("old-damage", timeout=30)] == expected
        wait_until(lambda: len(put_aside(broker, topic_id, 0)) > before, "the damaged copy put aside")
        wait_until(lambda: name in client.describe_topic("old-damage").partitions[0].chain, "the member's return")
        with Client(broker.address, read_from=lambda infos: sorted(infos, key=lambda info: info.id != name)) as picky:
            assert [message.value for message in picky.read("old-damage", timeout=30)] == expected


def test_damage_that_a_joiner_would_get_makes_the_copy_leave(three, wait_until):
    """K2: what is fed is verified; else the joiner refuses it, again and again, and nobody looks at the disk."""
    with three.client(timeout=30) as client:
        topic_id = client.create_topic("fed-damage", partitions=1, replicas=3).id
        with client.producer("fed-damage") as producer:
            for number in range(60):  # more than is kept at hand
                producer.send(b"%d " % number + bytes(200_000))
        _, tail, gone = three.chain("fed-damage")
        three.kill(gone)
        three.wait_for_chain("fed-damage", 2)
        file = log_files(three.brokers[tail].directory, topic_id, 0)[0]
        at = positions(file)[2][2] - 300
        with file.open("r+b") as log:
            log.seek(at)
            byte = log.read(1)[0]
            log.seek(at)
            log.write(bytes([byte ^ 0x10]))
        shutil.rmtree(three.brokers[gone].directory)
        three.restart(gone)
        three.wait_for_chain("fed-damage", 3, timeout=60)
        wait_until(lambda: three.chain("fed-damage")[-1] == tail, "the damaged copy to be fetched anew", 30)
        found = [int(message.value.split()[0]) for message in client.read("fed-damage", timeout=30)]
        assert found == list(range(60))
