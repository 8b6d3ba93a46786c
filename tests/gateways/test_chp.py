"""The Clustered Hashmap Protocol, frame by frame, as a client that was written from RFC 12 alone sees it."""

import struct
import uuid

import pytest
import zmq
from tests.gateways.chp_client import Replica

EMPTY = b""


def raw_snapshot(client, *frames):
    client.snapshot.send_multipart(frames)
    found = []
    while True:
        found.append(client.snapshot.recv_multipart())
        if found[-1][0] == b"KTHXBAI":
            return found


def test_an_empty_table_is_kthxbai_alone(gateway):
    with gateway.chp() as client:
        assert raw_snapshot(client, b"ICANHAZ?", EMPTY) == [[b"KTHXBAI", bytes(8), EMPTY, EMPTY, EMPTY]]


def test_a_snapshot_has_each_key_once_then_kthxbai_with_the_tables_sequence(gateway, table):
    table.put("client/1", "one")
    table.put("client/2", "two")
    table.put("client/1", "uno")
    with gateway.chp() as client:
        *keys, end = raw_snapshot(client, b"ICANHAZ?", EMPTY)
    assert sorted(keys) == [
        [b"/client/1", struct.pack("!Q", 3), EMPTY, EMPTY, b"uno"],
        [b"/client/2", struct.pack("!Q", 2), EMPTY, EMPTY, b"two"],
    ]
    assert end == [b"KTHXBAI", struct.pack("!Q", 3), EMPTY, EMPTY, EMPTY]


def test_a_subtree_is_all_that_its_snapshot_has(gateway, table):
    table.put_many({"client/1": "one", "clients/2": "two", "other": "three"})
    with gateway.chp() as client:
        (key, end) = raw_snapshot(client, b"ICANHAZ?", b"/client/")
    assert key == [b"/client/1", struct.pack("!Q", 1), EMPTY, EMPTY, b"one"]
    assert end == [b"KTHXBAI", struct.pack("!Q", 3), EMPTY, EMPTY, b"/client/"]


def test_each_change_of_the_table_is_a_kvpub_with_a_growing_sequence(gateway, table):
    with gateway.chp(b"/client/") as client:
        client.until_connected()
        _, end = client.icanhaz()
        table.put("client/1", "one")
        table.put("elsewhere", "two")
        table.put("client/1", b"three")
        table.delete("client/1")
        said = [client.hear_change() for _ in range(3)]
    assert [one.key for one in said] == [b"/client/1"] * 3
    assert [one.value for one in said] == [b"one", b"three", EMPTY]
    assert [one.sequence - end.sequence for one in said] == [1, 3, 4]
    assert {(one.uuid, one.properties) for one in said} == {(EMPTY, EMPTY)}


@pytest.mark.parametrize("kind", [zmq.PUB, zmq.PUSH], ids=["pub", "push"])
def test_a_kvset_changes_the_table_and_comes_back_with_its_uuid_and_properties(gateway, table, kind, wait_until):
    with gateway.chp(b"/client/", publish_with=kind) as client:
        client.until_connected()
        mine = client.kvset(b"/client/7", b"seven", b"color=red\nshape=round\n")
        said = client.hear_change()
        assert said[:1] + said[2:] == (b"/client/7", mine, b"color=red\nshape=round\n", b"seven")
        wait_until(lambda: table.get("client/7") == b"seven")
        assert table.entry("client/7").version + 1 == said.sequence
        other = client.kvset(b"/client/7", EMPTY)
        said = client.hear_change()
        assert said[:1] + said[2:] == (b"/client/7", other, EMPTY, EMPTY)
        wait_until(lambda: "client/7" not in table)


@pytest.mark.parametrize("none", [EMPTY, bytes(16)], ids=["empty", "zeros"])
def test_a_kvset_without_a_uuid_is_made_each_time_and_published_without_one(gateway, none):
    with gateway.chp() as client:
        client.until_connected()
        for value in (b"1", b"2"):
            client.kvset(b"/a", value, ident=none)
            assert client.hear_change()[2:] == (EMPTY, EMPTY, value)


TEXT_UUID = b"3d1f9a80-6c8e-4f39-9a37-0b64c1a5f1d2"


@pytest.mark.parametrize("ident", [b"7", uuid.uuid4().bytes, TEXT_UUID], ids=["one byte", "16 bytes", "text"])
def test_any_uuid_will_do_comes_back_and_is_made_once(gateway, ident):
    """The Guide's Java client sends text of 36 bytes."""
    with gateway.chp(publish_with=zmq.PUSH) as client:
        client.until_connected()
        for value in (b"1", b"2"):
            client.kvset(b"/a", value, ident=ident)
        client.kvset(b"/end", b"3")
        said = [client.hear_change() for _ in range(2)]
    assert [(one.key, one.value) for one in said] == [(b"/a", b"1"), (b"/end", b"3")]
    assert said[0].uuid == ident


def test_a_key_without_a_slash_is_a_key_of_its_own(gateway, table, wait_until):
    with gateway.chp(publish_with=zmq.PUSH) as client:
        client.until_connected()
        client.kvset(b"7", b"seven")
        client.kvset(b"/7", b"other")
        client.kvset(b"8/deep", b"eight")
        said = [client.hear_change() for _ in range(3)]
        assert [(one.key, one.value) for one in said] == [(b"7", b"seven"), (b"/7", b"other"), (b"8/deep", b"eight")]
        wait_until(lambda: {"-/7": b"seven", "7": b"other", "-/8/deep": b"eight"}.items() <= dict(table).items())
        table.put("-/9", "nine")
        assert client.hear_change().key == b"9"
        client.kvset(b"7", b"")
        assert client.hear_change()[::4] == (b"7", b"")
        wait_until(lambda: "-/7" not in table)
        keys = {said.key for said in client.icanhaz()[0]}
    assert keys == {b"/hello", b"/7", b"8/deep", b"9"}


@pytest.mark.parametrize("word", ["KTHXBAI", "HUGZ"])
def test_a_key_of_the_table_never_looks_like_a_word_of_the_protocol(gateway, table, word):
    table.put(f"-/{word}", "1")
    with gateway.chp() as client:
        found, _ = client.icanhaz()
        assert [said.key for said in found] == [b"/-/" + word.encode()]


def test_many_changes_of_one_key_all_come_back_in_order(gateway):
    with gateway.chp(publish_with=zmq.PUSH) as client:
        client.until_connected()
        sent = [client.kvset(b"/counter", b"%d" % number) for number in range(200)]
        said = [client.hear_change() for _ in sent]
    assert [one.uuid for one in said] == sent
    assert [one.value for one in said] == [b"%d" % number for number in range(200)]
    sequences = [one.sequence for one in said]
    assert sequences == sorted(set(sequences))


@pytest.mark.parametrize("subtree", [b"", b"/client/", b"/client/7/deep/"], ids=["all", "subtree", "deeper"])
def test_a_sign_of_life_reaches_every_subscriber(gateway, subtree):
    with gateway.chp(subtree) as client:
        said = client.hear()
    assert said.key == (subtree or b"HUGZ")
    assert said[1:] == (0, EMPTY, EMPTY, EMPTY)


def test_hugz_is_called_hugz_where_a_client_asks_for_that_name(gateway):
    with gateway.chp(b"/client/") as client:
        client.subscriber.subscribe(b"HUGZ")
        client.subscriber.unsubscribe(b"/client/")
        assert client.hear() == (b"HUGZ", 0, EMPTY, EMPTY, EMPTY)


def test_a_replica_follows_whoever_changes_the_table(gateway, table):
    table.put("before", "1")
    with gateway.chp() as client:
        client.until_connected()
        replica = Replica(client)
        table.put("after", "2")
        table.delete("before")
        replica.take_until(lambda values: b"/before" not in values)
        assert replica.values.pop(b"/hello")
        assert replica.values == {b"/after": b"2"}
        assert replica.sequence == table.sequence[0]


def test_a_large_snapshot_is_whole_though_the_client_is_slow_to_take_it(gateway, table):
    keys = {f"k/{number}": "v" * 100 for number in range(30_000)}
    table.put_many(keys)
    with gateway.chp() as client:
        client.snapshot.rcvhwm = 1
        found, end = client.icanhaz()
    assert {said.key.decode()[1:] for said in found} == set(keys)
    assert len(keys) <= end.sequence <= table.sync()[0]  # the head may have logged a horizon since


def test_a_client_that_asks_again_gets_everything_again(gateway, table):
    table.put("a", "1")
    with gateway.chp() as client:
        assert client.icanhaz() == client.icanhaz()


def test_the_same_uuid_is_made_once(gateway, table, wait_until):
    with gateway.chp(publish_with=zmq.PUSH) as client:
        client.until_connected()
        ident = uuid.uuid4().bytes
        client.kvset(b"/a", b"1", ident=ident)
        client.kvset(b"/a", b"2", ident=ident)
        client.kvset(b"/b", b"3")
        assert client.hear_change().value == b"1"
        assert client.hear_change().value == b"3"
        wait_until(lambda: "b" in table)
        assert table["a"] == b"1"
    assert gateway.counts.duplicates == 1


def test_a_key_with_a_ttl_goes_by_itself_and_all_are_told(gateway, table):
    with gateway.chp(publish_with=zmq.PUSH) as client:
        client.until_connected()
        client.kvset(b"/short", b"1", b"ttl=1\n")
        said = client.hear_change()
        assert said[3:] == (b"ttl=1\n", b"1")
        assert table.sync()
        assert table.entry("short").ttl == 1.0
        gone = client.hear_change()
        assert (gone.key, gone.properties, gone.value) == (b"/short", EMPTY, EMPTY)
        assert gone.sequence > said.sequence
        table.sync()
        assert "short" not in table


def test_a_ttl_on_the_wire_counts_from_the_change_whoever_made_it(gateway, table):
    with gateway.chp() as client:
        client.until_connected()
        table.put("a", "1", ttl=90)
        table.put("b", "1", ephemeral=True)
        assert [client.hear_change().properties for _ in range(2)] == [b"ttl=90\n", EMPTY]


def test_a_ttl_of_zero_means_for_ever(gateway, table):
    with gateway.chp(publish_with=zmq.PUSH) as client:
        client.until_connected()
        client.kvset(b"/a", b"1", b"ttl=0\n")
        client.hear_change()
    table.sync()
    assert table.entry("a").ttl is None


BAD_CHANGES = {
    "no frames but one": [b"/a"],
    "four frames": [b"/a", bytes(8), bytes(16), b"v"],
    "six frames": [b"/a", bytes(8), bytes(16), b"", b"v", b""],
    "a short sequence": [b"/a", bytes(7), bytes(16), b"", b"v"],
    "a long uuid": [b"/a", bytes(8), bytes(65), b"", b"v"],
    "a key below that of slashless ones": [b"/-/a", bytes(8), bytes(16), b"", b"v"],
    "a key that is a word of the protocol": [b"KTHXBAI", bytes(8), bytes(16), b"", b"v"],
    "an empty key": [b"", bytes(8), bytes(16), b"", b"v"],
    "the root": [b"/", bytes(8), bytes(16), b"", b"v"],
    "a key that ends with a slash": [b"/a/", bytes(8), bytes(16), b"", b"v"],
    "a key that is no text": [b"/\xff", bytes(8), bytes(16), b"", b"v"],
    "a property that is none": [b"/a", bytes(8), bytes(16), b"nonsense\n", b"v"],
    "a ttl that is no number": [b"/a", bytes(8), bytes(16), b"ttl=soon\n", b"v"],
    "a ttl that is no time": [b"/a", bytes(8), bytes(16), b"ttl=-1\n", b"v"],
    "a ttl without end": [b"/a", bytes(8), bytes(16), b"ttl=inf\n", b"v"],
}


def test_bad_changes_are_counted_and_dropped_and_good_ones_go_on(gateway, table, wait_until):
    with gateway.chp(publish_with=zmq.PUSH) as client:
        for frames in BAD_CHANGES.values():
            client.publisher.send_multipart(frames)
        client.kvset(b"/good", b"1")
        wait_until(lambda: "good" in table)
    assert gateway.counts.bad_frames == len(BAD_CHANGES)
    assert list(table) == ["good"]


def test_bad_requests_are_counted_and_dropped_and_good_ones_go_on(gateway):
    with gateway.chp() as client:
        for frames in ([b""], [b"HELLO"], [b"ICANHAZ"], [b"ICANHAZ?", b"", b""], [b"", b"ICANHAZ?", b""]):
            client.snapshot.send_multipart(frames)
        assert client.icanhaz()[0] == []
    assert gateway.counts.bad_frames == 5
