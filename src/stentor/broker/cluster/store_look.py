"""When the whole store is read although it is watched: another broker changed a topic, and the watch may be slow.

Reading everything for every topic that is made costs the square of their number. So the watch gets a moment to tell
what changed; only if it has not by then, the store is read, once for all changes of that moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stentor import limits

if TYPE_CHECKING:
    from stentor.broker.background import Background
    from stentor.broker.cluster.store_follower import StoreFollower
    from stentor.broker.cluster.store_rollback import StoreRollback
    from stentor.broker.environment import Environment


class StoreLook:
    """Looks at the store for what the watch does not tell in time."""

    def __init__(
        self, environment: Environment, rollback: StoreRollback, follower: StoreFollower, background: Background
    ) -> None:
        self._loop = environment.loop
        self._rollback = rollback
        self._follower = follower
        self._background = background
        self._due = False
        self._revision = 0  # that the watch should have reached by then

    def soon(self, revision: int) -> None:
        """The store has changed, at this revision; 0: at one that is not known."""
        self._revision = max(self._revision, revision or self._rollback.revision + 1)
        if not self._due:
            self._due = True
            self._loop.call_later(limits.STORE_WATCH_S, self._look_if_behind)

    def _look_if_behind(self) -> None:
        self._due = False
        revision, self._revision = self._revision, 0
        if self._rollback.revision < revision and not self._background.closed:
            self._background.spawn(self._follower.look_again())
