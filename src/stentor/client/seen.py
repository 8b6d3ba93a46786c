"""What a client has seen to be committed, so that no broker can show it less (C24)."""

from __future__ import annotations

import msgspec


class Sight(msgspec.Struct, frozen=True):
    """A commit point, and the epoch of the chain that said so."""

    committed: int = 0
    epoch: int = 0


_NOTHING = Sight()


class Seen:
    """The highest commit point of each partition that this client was told of, by whomever."""

    def __init__(self) -> None:
        self._sights: dict[tuple[int, int], Sight] = {}

    def of(self, topic_id: int, partition: int) -> Sight:
        """The highest of a partition."""
        return self._sights.get((topic_id, partition), _NOTHING)

    def saw(self, topic_id: int, partition: int, committed: int, epoch: int) -> None:
        """Somebody said so; who said less before is not contradicted, only behind."""
        known = self._sights.get((topic_id, partition), _NOTHING)
        if committed > known.committed:
            self._sights[topic_id, partition] = Sight(committed, epoch)

    def corrected(self, topic_id: int, partition: int, committed: int, epoch: int) -> None:
        """The head of a later epoch has less: what was committed is lost, by an operator's word (C13)."""
        self._sights[topic_id, partition] = Sight(committed, epoch)

    def forget(self, topic_ids: set[int]) -> None:
        """These topics are gone."""
        self._sights = {key: sight for key, sight in self._sights.items() if key[0] not in topic_ids}
