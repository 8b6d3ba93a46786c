import pickle

import msgspec
import pytest

from stentor import errors, limits
from stentor.errors import ProtocolError, StentorError
from stentor.wire import frames, messages
from stentor.wire.schemas import SchemaColumn

INFO = messages.BrokerInfo(id="b", cluster_id="c", version="1", address="h:1")
SETTINGS = messages.TopicSettings(partitions=3)
ROUTE = messages.TopicRoute(
    name="t", id=1, settings=SETTINGS, partitions=[messages.PartitionRoute(epoch=1, chain=["b"])]
)

REQUESTS = [
    messages.CreateTopic(name="t", settings=messages.TopicChanges(partitions=3), exist_ok=True),
    messages.AlterTopic(name="t", changes=messages.TopicChanges(retention_bytes=None)),
    messages.RegisterSchema(name="t", columns=[SchemaColumn(name="n", type="int64")]),
    messages.DeleteTopic(name="t"),
    messages.DescribeTopic(name="t"),
    messages.ListTopics(pattern="a.>"),
    messages.FindOffset(topic_id=1, partition=0, last=5),
    messages.WatchRoutes(),
    messages.ListClients(),
    messages.GetStatistics(),
    messages.ReportDamage(topic_id=1, partition=0, offset=1),
]
RESPONSES = [
    messages.TopicDescribed(topic=messages.TopicInfo(name="t", id=1, settings=SETTINGS)),
    messages.TopicList(topics=[]),
    messages.OffsetFound(offset=1, start=0, committed=2),
    messages.RouteTable(version=1, brokers=[INFO], topics=[ROUTE]),
    messages.ClientList(clients=[]),
    messages.Statistics(statistics={"a": [1, 2.5, None, {"b": "c"}]}),
    messages.Done(),
]


@pytest.mark.parametrize("message", REQUESTS, ids=lambda m: type(m).__name__)
def test_a_request_comes_back_as_it_was(message):
    assert messages.decode(messages.encode(message), messages.Request) == message


@pytest.mark.parametrize("message", RESPONSES, ids=lambda m: type(m).__name__)
def test_a_response_comes_back_as_it_was(message):
    assert messages.decode(messages.encode(message), messages.Response) == message


def test_changes_name_the_settings_of_a_topic_with_the_same_bounds():
    settings, changes = (msgspec.structs.fields(k) for k in (messages.TopicSettings, messages.TopicChanges))
    assert [(field.name, field.type | msgspec.UnsetType) for field in settings] == [(f.name, f.type) for f in changes]
    assert all(field.default is msgspec.UNSET for field in changes)


def test_what_is_not_named_stays():
    merged = messages.merge_settings(SETTINGS, messages.topic_changes({"retention_bytes": 5, "flush": "interval"}))
    assert merged == messages.TopicSettings(partitions=3, retention_bytes=5, flush="interval")
    unlimited = messages.merge_settings(merged, messages.TopicChanges(retention_bytes=None))
    assert unlimited == messages.TopicSettings(partitions=3, flush="interval")


def test_an_error_with_many_details_travels_with_some_of_them():
    error = StentorError("Much to say.", **{f"detail_{number}": number for number in range(100)})
    again = messages.raised(messages.decode(messages.encode(messages.failure(error)), messages.Failure))
    assert len(again.detail) == limits.ERROR_DETAILS_MAX


def test_fields_of_a_newer_peer_are_ignored():
    body = msgspec.msgpack.encode({"type": "DeleteTopic", "name": "t", "from_the_future": [1]})
    assert messages.decode(body, messages.Request) == messages.DeleteTopic(name="t")


WRONG = {
    "nothing": b"",
    "garbage": b"\xc1\xc1",
    "not a map": msgspec.msgpack.encode([1, 2]),
    "no type": msgspec.msgpack.encode({"name": "t"}),
    "an unknown type": msgspec.msgpack.encode({"type": "Reboot"}),
    "a response": msgspec.msgpack.encode({"type": "Done"}),
    "a missing field": msgspec.msgpack.encode({"type": "DeleteTopic"}),
    "a wrong field": msgspec.msgpack.encode({"type": "DeleteTopic", "name": 5}),
    "an empty name": msgspec.msgpack.encode({"type": "DeleteTopic", "name": ""}),
    "a long name": msgspec.msgpack.encode({"type": "DeleteTopic", "name": "x" * 201}),
    "a negative id": msgspec.msgpack.encode({"type": "FindOffset", "topic_id": -1, "partition": 0}),
    "an id beyond 63 bits": msgspec.msgpack.encode({"type": "FindOffset", "topic_id": 2**63, "partition": 0}),
    "a partition beyond 32 bits": msgspec.msgpack.encode({"type": "FindOffset", "topic_id": 1, "partition": 2**32}),
    "bytes too many": messages.encode(messages.Done()) + b"\0",
    "text that is not UTF-8": b"\x82\xa4type\xabDeleteTopic\xa4name\xa1\xff",
    "a map that claims too much": b"\xdf\xff\xff\xff\xff",
    "an array that claims too much": b"\xdd\xff\xff\xff\xff",
    "a string that claims too much": b"\xdb\xff\xff\xff\xff",
    "depth": b"\x81\xa1a" * 100_000,
    "depth inside a field": msgspec.msgpack.encode({"type": "AlterTopic", "name": "t"})[:-1]
    + b"\xa7changes"
    + b"\x91" * 100_000,
}


@pytest.mark.parametrize("body", WRONG.values(), ids=WRONG)
def test_what_is_not_a_request_is_a_protocol_error(body):
    with pytest.raises(ProtocolError, match="could not be understood"):
        messages.decode(body, messages.Request)
    with pytest.raises(ProtocolError):
        messages.decode(memoryview(body), messages.Request)


@pytest.mark.parametrize("credit", [0, -1, limits.STREAM_CREDIT_BYTES_MAX + 1])
def test_a_stream_cannot_be_opened_with_impossible_credit(credit):
    body = msgspec.msgpack.encode({"topic_id": 1, "partition": 0, "start": 0, "credit": credit})
    with pytest.raises(ProtocolError):
        messages.decode(body, messages.OpenStream)


@pytest.mark.parametrize("kind", sorted(errors.BY_CODE.values(), key=lambda kind: kind.code))
def test_every_error_arrives_as_the_error_it_was(kind):
    sent = kind("It failed.", hint="Do that.", operation="publish", object="t/0", start=3, reason="gap", other=object())
    body = messages.encode(messages.failure(sent))
    got = messages.raised(messages.decode(body, messages.Failure))
    assert type(got) is kind
    assert (got.message, got.hint, got.operation, got.object) == ("It failed.", "Do that.", "publish", "t/0")
    assert got.detail == {"start": 3, "reason": "gap"}
    assert got.retriable == sent.retriable
    again = pickle.loads(pickle.dumps(got))
    assert (type(again), str(again), again.detail) == (kind, str(got), got.detail)


def test_an_error_of_a_newer_peer_stays_readable():
    got = messages.raised(messages.Failure(code="from_the_future", message="It failed.", retriable=True))
    assert type(got) is StentorError
    assert str(got) == "It failed."
    assert got.retriable


def test_details_cannot_pass_for_what_an_error_says_itself():
    detail = {"self": 1, "message": "m", "hint": "h", "operation": "o", "object": "x", "start": 4, "not a name": 5}
    got = messages.raised(messages.Failure(code="closed", message="It failed.", hint="Do that.", detail=detail))
    assert str(got) == "It failed. Do that."
    assert got.detail == {"start": 4, "not a name": 5}
    assert pickle.loads(pickle.dumps(got)).detail == got.detail


def test_a_frame_is_its_header_and_its_body():
    made = frames.frame(frames.Kind.PING, 2**64 - 1, b"abc", flags=3)
    assert frames.HEADER.unpack(made[:16]) == (3, 4, 3, 0, 2**64 - 1)
    assert made[16:] == b"abc"
    assert frames.HEADER_BYTES == 16
