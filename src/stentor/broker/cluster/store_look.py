"""When the whole store is read although it is watched: another broker changed a topic, and the watch may be slow.

Reading everything for every topic that is made costs the square of their number. So the watch gets a moment to tell
what changed; only if it has not by then, the store is read, once for all changes of that moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor.broker.broker import Broker
    from stentor.broker.cluster.store_rollback import StoreRollback

_WATCH_S: Final = 0.2


class StoreLook:
    """Looks at the store for what the watch does not tell in time."""

    def __init__(self, broker: Broker, restored: StoreRollback, look: Callable[[], None]) -> None:
        self._broker = broker
        self._restored = restored
        self._look = look
        self._due = False
        self._revision = 0  # that the watch should have reached by then

    def soon(self, revision: int) -> None:
        """The store has changed, at this revision; 0: at one that is not known."""
        self._revision = max(self._revision, revision or self._restored.revision + 1)
        if not self._due:
            self._due = True
            self._broker.loop.call_later(_WATCH_S, self._look_if_behind)

    def _look_if_behind(self) -> None:
        self._due = False
        revision, self._revision = self._revision, 0
        if self._restored.revision < revision and not self._broker.stopping:
            self._look()
