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
        self._threads = [
            threading.Thread(target=self._guard, args=(work,), name=f"neighbour-{work.__name__}")
            for work in (self._publish, self._receive)
        ]
        for thread in self._threads:
            thread.start()

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
        while not self._stop.is_set() or self.received < self.published:
            message = self._subscription.get(timeout=15)
            assert message.value == b"%d" % self.received
            self.received += 1
            if self._stop.is_set() and self.received >= self.published:
                return

    def check(self) -> None:
        """Nothing was lost, nothing came twice, and no link broke."""
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive(), "the neighbour hangs"
        self._subscription.close()
        links = [client._core.links_made for client in (self._publisher, self._subscriber)]
        self._publisher.close()
        self._subscriber.close()
        if self._errors:
            raise self._errors[0]
        assert self.received == self.published > 0
        assert links == [1, 1], "the neighbour was disconnected"


@pytest.fixture
def settings() -> dict[str, object]:
    """Settings of the attacked broker; a test may name its own with a parameter."""
    return {}


@pytest.fixture
def attacked(request: pytest.FixtureRequest) -> Iterator[LocalBroker]:
    """A broker with a neighbour on it; the neighbour is asked at the end how it was."""
    with broker(**getattr(request, "param", {})) as local:
        neighbour = Neighbour(local)
        try:
            yield local
        finally:
            neighbour.check()
        assert local.inner.ready


@pytest.fixture
def resident_bytes():
    """Measures the memory of this process, which the broker lives in."""

    def measure() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    return measure
