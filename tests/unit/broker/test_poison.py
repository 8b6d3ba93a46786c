"""What clients wrote keeps no broker from starting, and a copy that cannot be opened fails alone (C33, C34)."""

from __future__ import annotations

import pytest

from stentor.broker.partitions import compaction, compactions
from stentor.core.horizon import HorizonState
from stentor.core.table import TableState
from stentor.errors import CorruptData, LimitExceeded, StentorError
from stentor.testing import broker
from stentor.wire import arrow_body, batch
from stentor.wire.batch import Encoded
from stentor.wire.header import ENCODING_ARROW, HAS_HEADERS

NOW_US = 1_700_000_000_000_000


def with_headers(count: int) -> Encoded:
    """One row of a table, with this many headers, as a foreign client may encode it."""
    table = arrow_body.record_batch([NOW_US], [b"poison"], [b"v"], [[("n", b"x")] * count])
    return batch._encoded(bytes(arrow_body.encode(table)), 1, ENCODING_ARROW | HAS_HEADERS, NOW_US, NOW_US)


@pytest.fixture
def quick(monkeypatch):
    """Horizons as soon as anything was written."""
    monkeypatch.setattr(compactions, "COMPACTION_CHECK_S", 0.02)
    monkeypatch.setattr(compaction, "COMPACTION_QUIET_S", 0.1)
    monkeypatch.setattr(compaction, "COMPACTION_QUIET_BYTES_MIN", 1)


def is_compacted(client, topic):
    row = next(row for row in client.statistics()["partitions"] if row["topic"] == topic)
    return row["compaction"]["runs"] and row["compaction"]["messages_removed"] > 100


def test_a_head_refuses_a_row_that_others_could_not_read(local, client, raw):
    client.create_topic("t", kind="table")
    link = raw(local.url).greet()
    with pytest.raises(LimitExceeded, match="1500 headers"):
        link.published(link.publish_encoded(client.describe_topic("t").id, with_headers(1_500)))
    assert link.published(link.publish_encoded(client.describe_topic("t").id, with_headers(1_000))) == 0


def test_a_table_with_such_a_row_from_before_is_compacted_and_the_broker_starts_again(
    tmp_path, raw, quick, wait_until, monkeypatch
):
    with broker(tmp_path) as local, local.client() as client:
        client.create_topic("t", kind="table")
        with monkeypatch.context() as older:
            older.setattr(batch, "check_headers", lambda *_: None)
            link = raw(local.url).greet()
            link.published(link.publish_encoded(client.describe_topic("t").id, with_headers(1_500)))
        with client.table("t") as table:
            for number in range(400):
                table.put("k", str(number))
        wait_until(lambda: is_compacted(client, "t"), "the table is compacted")
    with broker(tmp_path) as again, again.client() as client, client.table("t") as table:
        assert dict(table) == {"poison": b"v", "k": b"399"}


# --- a copy that cannot be opened -----------------------------------------------------------------


@pytest.fixture
def unopened(tmp_path, monkeypatch):
    """A broker of which one copy cannot be opened, and what is wrong with it."""

    def start(error):
        with broker(tmp_path) as local, local.client() as client:
            client.create_topic("bad", kind="table")
            client.create_topic("good", kind="table")
            for name in ("bad", "good"):
                with client.table(name) as table:
                    table.put("k", "v")
            bad = client.describe_topic("bad").id
        restored, applied = TableState.restore, TableState.apply

        def restore(state, snapshot):
            restored(state, snapshot)
            if isinstance(error, CorruptData) and broken.pop("restore", None):
                raise error

        def apply(state, header, body):
            if not isinstance(error, CorruptData) and getattr(header, "topic_id", None) == bad:
                raise error
            applied(state, header, body)

        broken = {"restore": True}
        monkeypatch.setattr(TableState, "restore", restore)
        monkeypatch.setattr(TableState, "apply", apply)
        return broker(tmp_path)

    return start


@pytest.mark.parametrize("error", [CorruptData("Its snapshot is lost."), KeyError("a bug"), MemoryError()])
def test_a_broker_starts_without_a_copy_that_cannot_be_opened(unopened, wait_until, monkeypatch, error):
    with unopened(error) as local, local.client(timeout=2) as client:
        (name,) = local.inner.parts.copies.unopened.values()
        topic = name.partition("/")[0]
        other = {"bad": "good", "good": "bad"}[topic]
        with client.table(other) as table:
            assert table["k"] == b"v"
        with pytest.raises(StentorError):
            client.publish(topic, "x", key="k", timeout=0.5)
        assert any(name in problem.message for problem in local.inner.health().problems)
        assert local.inner.parts.ground.directory.partition_directory(client.describe_topic(topic).id, 0).exists()
    monkeypatch.undo()
    with broker(local.data_directory) as again, again.client() as client, client.table(topic) as table:
        assert table["k"] == b"v"


def test_a_copy_whose_state_cannot_be_derived_stops_and_says_so(local, client, monkeypatch):
    client.create_topic("t", kind="table")
    with client.table("t") as table:
        table.put("k", "1")

        def apply(state, header, body):
            raise KeyError("a bug")

        with monkeypatch.context() as broken:
            broken.setattr(HorizonState, "apply", apply)
            with pytest.raises(StentorError):
                table.put("k", "2", timeout=1)
    ((_, partition),) = (pair for pair in local.inner.partitions.items() if pair[1].topic == "t")
    assert "horizon cannot be derived" in partition.replica.failed
