"""confluent-kafka into librdkafka's own mock cluster: how fast the client produces when the server is free.

The mock lives in the producer's process, keeps the log in memory and has no consumer here. It is a
ceiling of the client, not a measurement of Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.model import BenchError
from bench.processes import Server
from bench.systems.base import System

if TYPE_CHECKING:
    from pathlib import Path

    from bench.model import Case, Spec
    from bench.processes import Processes
    from bench.systems.base import Publisher

WAIT_S = 60.0


class Kafka(System):
    name = "kafka"
    has_reader = False

    def start(self, case: Case, directory: Path, processes: Processes) -> Server:
        return Server("mock")

    def publisher(self, spec: Spec) -> Publisher:
        return MockPublisher(spec)


class MockPublisher:
    def __init__(self, spec: Spec) -> None:
        from confluent_kafka import Producer

        self._topic = spec.topic
        self._producer = Producer(
            {
                "test.mock.num.brokers": 1,
                "bootstrap.servers": "mock",
                "acks": "all",
                "linger.ms": 5,
                "batch.num.messages": spec.batch,
                "queue.buffering.max.messages": 1_000_000,
                "log_level": 0,
            }
        )

    def send(self, keys: list[bytes], values: list[bytes]) -> None:
        produce, topic = self._producer.produce, self._topic
        for key, value in zip(keys, values, strict=True):
            while True:
                try:
                    # Partition 0: the mock makes four, the work has one.
                    produce(topic, value, key, 0)
                    break
                except BufferError:
                    self._producer.poll(0.01)
        self._producer.poll(0)

    def flush(self) -> None:
        left = self._producer.flush(WAIT_S)
        if left:
            raise BenchError(f"{left} messages were not delivered to the mock within {WAIT_S} s")

    def pause(self, seconds: float) -> None:
        self._producer.poll(seconds)


SYSTEM = Kafka()
