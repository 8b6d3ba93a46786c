"""What the process of a node does around the broker."""

import asyncio
import signal

from stentor import node


class _Quick:
    """A node that starts and stops at once."""

    def __init__(self, config):
        pass

    async def start(self):
        return "info"

    async def stop(self):
        pass


def test_what_a_broker_has_when_it_is_ready_is_set_apart_from_what_is_collected(monkeypatch):
    """Else a full collection walks over all modules while it serves, and everybody waits for it."""
    happened = []
    monkeypatch.setattr(node, "Node", _Quick)
    monkeypatch.setattr(node, "keep_long_lived_objects", lambda: happened.append("set apart"))

    def ready(info):
        happened.append(info)
        signal.raise_signal(signal.SIGTERM)

    asyncio.run(node._run(None, ready))
    assert happened == ["set apart", "info"]
