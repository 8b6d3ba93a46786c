"""A broker that may open few files: it refuses before it is too late, and no log stops."""

import socket
from contextlib import suppress
from pathlib import Path

import pytest

from stentor import connect
from stentor.broker.sessions.admission import descriptor_limit
from stentor.errors import Closed, LimitExceeded, OutOfDescriptors

FEW = 200


def open_files(process):
    return len(list(Path(f"/proc/{process.process.pid}/fd").iterdir()))


def folders(data):
    return sorted((data / "partitions").iterdir())


def until_refused(work):
    """Do something again and again, until the broker says no."""
    for number in range(2 * FEW):
        work(number)


def test_a_topic_that_would_use_up_the_descriptors_is_refused_before_anything_is_made(served, tmp_path):
    process = served(descriptors=FEW).start()
    with connect(process.url) as client:
        client.publish("before", b"1")
        files, made = open_files(process), folders(tmp_path / "data")
        with pytest.raises(LimitExceeded, match="open files") as refused:
            client.create_topic("large", partitions=1024)
        assert "LimitNOFILE" in refused.value.hint
        assert open_files(process) <= files + 2
        assert folders(tmp_path / "data") == made
        assert [topic.name for topic in client.topics()] == ["before"]
        client.create_topic("small", partitions=20)
        client.publish("before", b"2")


def test_topics_leave_room_for_clients(served):
    process = served(descriptors=FEW).start()
    with connect(process.url) as client:
        with pytest.raises(LimitExceeded, match="open files"):
            until_refused(lambda number: client.create_topic(f"t{number}", partitions=5))
        others = [connect(process.url) for _ in range(10)]
        for other in others:
            other.publish("t0", b"x")
            other.close()


def test_a_log_rolls_while_strangers_have_taken_all_they_can(served, raw):
    process = served(descriptors=FEW, segment_bytes=65_536).start()
    with connect(process.url) as client:
        client.publish("t", b"1")
        with suppress(OSError):
            until_refused(lambda _: raw(process.url))
        for _ in range(30):
            client.publish("t", bytes(20_000))
        assert client.describe_topic("t").partitions[0].segments > 5


def test_idle_http_connections_are_few_and_health_is_answered_beside_them(served):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = served(descriptors=FEW, http_port=port, segment_bytes=65_536).start()
    with connect(process.url) as client:
        client.publish("t", b"1")
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(FEW // 2)]
        idle[-1].settimeout(10)
        idle[-1].sendall(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = idle[-1].recv(4096)
        assert answer.startswith(b"HTTP/1.1 200")
        assert b'"live": true' in answer
        for _ in range(30):
            client.publish("t", bytes(20_000))
        for one in idle:
            one.close()


def test_the_process_of_a_broker_may_open_as_many_files_as_the_system_allows(served):
    process = served(descriptors=0)
    process._limited = lambda: ["/bin/sh", "-c", 'ulimit -S -n 100; exec "$0" "$@"']
    process.start()
    soft, hard = Path(f"/proc/{process.process.pid}/limits").read_text().split("Max open files")[1].split()[:2]
    assert soft == hard
    assert int(soft) == descriptor_limit() or int(soft) > 100


def test_a_client_beyond_what_descriptors_allow_is_told(served, raw):
    process = served(descriptors=FEW).start()
    guests = [raw(process.url) for _ in range(FEW)]
    for guest in guests[: FEW // 4]:
        guest.greet()
    reason = guests[-1].refusal()
    assert reason.code == "closed"
    assert "which is its limit" in reason.message


@pytest.mark.parametrize("error", [OutOfDescriptors("There are too many open files."), Closed("The log is closed.")])
def test_readers_and_consumers_go_on_once_logs_can_be_read_again(local, client, monkeypatch, error):
    client.create_topic("t")
    client.create_topic("q", kind="queue")
    client.publish("t", b"1")
    with client.queue("q") as queue:
        queue.put(b"2")
        refused = []
        for name in ("t", "q"):
            partition = local.inner.parts.serving.partition(client.describe_topic(name).id, 0)
            partition.loop.call_soon_threadsafe(partition.tail.clear)  # so that it is read from disk

            def read(*args, original=partition.log.read, name=name, **options):
                if refused.count(name) < 3:
                    refused.append(name)
                    raise error
                return original(*args, **options)

            monkeypatch.setattr(partition.log, "read", read)
        with client.subscribe("t", start="earliest") as subscription:
            assert subscription.get(timeout=5).value == b"1"
        assert queue.get(timeout=5).value == b"2"
    assert sorted(refused) == ["q"] * 3 + ["t"] * 3
