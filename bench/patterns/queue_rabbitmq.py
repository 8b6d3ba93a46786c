"""The work queue on RabbitMQ: a quorum queue, by pika's own event loop, which is faster than its blocking layer."""

from __future__ import annotations

import time
from typing import Any

IN_FLIGHT_MAX = 2_000
"""Messages that are published and not confirmed."""


class _Talk:
    """One connection with one channel and one quorum queue, in the loop of this thread."""

    def __init__(self, address: str) -> None:
        import pika

        self.library = pika
        self.failure: Any = None
        self.connection = pika.SelectConnection(
            pika.URLParameters(address), on_open_callback=self._opened, on_open_error_callback=self._failed
        )

    def run(self) -> None:
        self.connection.ioloop.start()
        if self.failure is not None:
            raise RuntimeError(f"RabbitMQ: {self.failure}")

    def end(self) -> None:
        self.connection.ioloop.stop()

    def _failed(self, _: Any, reason: Any) -> None:
        self.failure = reason
        self.end()

    def _opened(self, _: Any) -> None:
        self.connection.channel(on_open_callback=self._declare)

    def _declare(self, channel: Any) -> None:
        channel.add_on_close_callback(self._failed)
        kind = {"x-queue-type": "quorum"}
        channel.queue_declare("jobs", durable=True, arguments=kind, callback=lambda _: self.begin(channel))

    def begin(self, channel: Any) -> None:
        raise NotImplementedError


class _Filling(_Talk):
    def __init__(self, address: str, jobs: int, value: bytes) -> None:
        super().__init__(address)
        self._jobs, self._value = jobs, value
        self._published = 0
        self._waiting: set[int] = set()  # published, and not confirmed
        self._channel: Any = None

    def begin(self, channel: Any) -> None:
        self._channel = channel
        channel.confirm_delivery(self._confirmed, callback=lambda _: self._go_on())

    def _go_on(self) -> None:
        persistent = self.library.BasicProperties(delivery_mode=2)
        while self._published < self._jobs and len(self._waiting) < IN_FLIGHT_MAX:
            self._channel.basic_publish("", "jobs", self._value, persistent)
            self._published += 1
            self._waiting.add(self._published)
        if not self._waiting:
            self.end()

    def _confirmed(self, frame: Any) -> None:
        tag = frame.method.delivery_tag
        if frame.method.multiple:
            self._waiting = {each for each in self._waiting if each > tag}
        else:
            self._waiting.discard(tag)
        self._go_on()


class _Working(_Talk):
    def __init__(self, address: str, jobs: int, size: int, prefetch: int) -> None:
        super().__init__(address)
        self._left, self._size, self._prefetch = jobs, size, prefetch
        self.began = 0

    def begin(self, channel: Any) -> None:
        channel.basic_qos(prefetch_count=self._prefetch, callback=lambda _: self._consume(channel))

    def _consume(self, channel: Any) -> None:
        self.began = time.perf_counter_ns()
        channel.basic_consume("jobs", self._handle)

    def _handle(self, channel: Any, method: Any, _: Any, body: bytes) -> None:
        assert len(body) == self._size
        channel.basic_ack(method.delivery_tag)
        self._left -= 1
        if not self._left:  # its answer comes behind all acknowledgements
            channel.queue_declare("jobs", passive=True, callback=lambda _: self.end())


def fill(address: str, jobs: int, value: bytes) -> None:
    """Put all jobs; each is confirmed."""
    _Filling(address, jobs, value).run()


def work(address: str, jobs: int, size: int, prefetch: int) -> int:
    """Work off all jobs, one by one; nanoseconds."""
    working = _Working(address, jobs, size, prefetch)
    working.run()
    return time.perf_counter_ns() - working.began
