"""Memory topics on a real cluster of three: what outlives a member, what does not, and how they come back."""

import pytest

from stentor.broker.cluster.trust import GROUPS
from stentor.core.memory_limits import OFFSETS_RESERVED
from stentor.errors import InvalidArgument, NotReady
from stentor.testing import LocalCluster


def values(client, topic):
    return [message.value for message in client.read(topic, timeout=20)]


def test_with_replicas_everything_outlives_the_head_and_a_member_is_filled_again(three):
    with three.client(timeout=30) as client:
        client.create_topic("telemetry", durability="memory", replicas=3, min_replicas=2)
        expected = []
        for victim in ("head", "tail"):
            with client.producer("telemetry") as producer:
                for _ in range(2_000):
                    expected.append(b"%d" % len(expected))
                    producer.send(expected[-1])
            name = getattr(three, victim)("telemetry")
            three.kill(name)
            client.publish("telemetry", expected.append(b"%d" % len(expected)) or expected[-1])
            assert values(client, "telemetry") == expected
            three.restart(name)
            three.wait_for_chain("telemetry", 3)
        assert values(client, "telemetry") == expected
        assert [message.offset for message in client.read("telemetry")] == list(range(len(expected)))


def test_when_all_brokers_were_killed_it_begins_anew_by_itself(three):
    with three.client(timeout=60) as client:
        client.create_topic("telemetry", durability="memory", replicas=3)
        client.create_topic("single", durability="memory")
        subscription = client.subscribe("telemetry", start="earliest")
        messages = iter(subscription)
        for topic in ("telemetry", "single"):
            client.publish(topic, b"before")
        assert next(messages).offset == 0
        for name in list(three.brokers):
            three.kill(name)
        for name in list(three.brokers):
            three.restart(name)
        three.wait_for_chain("telemetry", 3)
        for topic in ("telemetry", "single"):
            client.publish(topic, b"after")
            assert values(client, topic) == [b"after"]
        message = next(messages)
        assert (message.value, message.offset) == (b"after", OFFSETS_RESERVED)
        assert [event.next_offset for event in subscription.events() if event.kind == "skipped"] == [OFFSETS_RESERVED]


def is_forgotten(client, name):
    """Forget a broker, unless it is a member of some chain yet."""
    try:
        client.forget_broker(name)
    except InvalidArgument:
        return False
    return True


def test_a_broker_that_is_gone_for_good_is_forgotten_and_its_topic_begins_elsewhere(three):
    with three.client(timeout=60) as client:
        client.create_topic("single", durability="memory")
        client.publish("single", b"before")
        name = three.head("single")
        three.kill(name)
        three.wait_for(
            lambda: {b.info.id: b.view for b in client.brokers()}[name] != "heard", what=f"{name} is not heard"
        )
        three.wait_for(lambda: is_forgotten(client, name), what=f"other brokers have the replicas of {name}")
        client.publish("single", b"after")
        assert values(client, "single") == [b"after"]
        assert three.head("single") != name
        three.restart(name)


@pytest.mark.long
def test_memory_topics_wait_until_every_broker_knows_them():
    with (
        LocalCluster(3, settings={"feature_level_max": GROUPS}) as cluster,
        cluster.client(timeout=20) as client,
        pytest.raises(NotReady, match="memory topics"),
    ):
        client.create_topic("telemetry", durability="memory")
