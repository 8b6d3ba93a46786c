"""A broker under attack, and a well-behaved neighbour that must not notice."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stentor.testing import LocalBroker, broker


class Neighbour:
    """Publishes and subscribes all the time; at the end nothing may be missing, doubled or delayed for ever."""

    def __init__(self, local: LocalBroker) -> None:
        self._publisher = local.client(name="neighbour-publisher")
        self._subscriber = local.client(name="neighbour-subscriber")
        self._subscription = self._subscriber.subscribe("neighbour", start="earliest")
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        self.published = 0
        self.received = 0
        self._publishing, self._receiving = (
            threading.Thread(target=self._guard, args=(work,), name=f"neighbour-{work.__name__}")
            for work in (self._publish, self._receive)
        )
        self._publishing.start()
        self._receiving.start()

    def _guard(self, work) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - shown by `check`
            self._errors.append(error)

    def _publish(self) -> None:
        while not self._stop.is_set():
            receipt = self._publisher.publish("neighbour", b"%d" % self.published)
            assert receipt.offset == self.published
            self.published += 1
            self._stop.wait(0.002)

    def _receive(self) -> None:
        for message in self._subscription:
            assert message.value == b"%d" % self.received
            self.received += 1

    def check(self, wait_until) -> None:
        """Nothing was lost, nothing came twice, and no link broke."""
        self._stop.set()
        self._publishing.join(30)
        assert not self._publishing.is_alive(), "the neighbour hangs"
        wait_until(lambda: self._errors or self.received == self.published, "the neighbour has received everything")
        self._subscription.close()
        self._receiving.join(30)
        links = [client._core.links_made for client in (self._publisher, self._subscriber)]
        self._publisher.close()
        self._subscriber.close()
        if self._errors:
            raise self._errors[0]
        assert self.published > 0
        assert links == [1, 1], "the neighbour was disconnected"


@pytest.fixture
def attacked(wait_until) -> Iterator[LocalBroker]:
    """A broker with a neighbour on it; the neighbour is asked at the end how it was."""
    with broker() as local:
        neighbour = Neighbour(local)
        try:
            yield local
        finally:
            neighbour.check(wait_until)
        assert local.inner.ready


@pytest.fixture
def resident_bytes():
    """Measures the memory of this process, which the broker lives in."""

    def measure() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    return measure
