"""What became of a producer's messages: counted, and failures kept until somebody is told."""

from __future__ import annotations

import msgspec

from stentor import limits
from stentor.errors import PublishError, StentorError


class FailedBatch(msgspec.Struct, frozen=True):
    """Messages that were not acknowledged, and why."""

    topic: str
    partition: int
    count: int
    error: StentorError


class Outcomes:
    """The counts of one producer, and the failures that nobody was told of yet."""

    def __init__(self, *, keep_failures: bool = True) -> None:
        self.acknowledged = 0  # messages
        self.failed = 0  # messages
        self.failures: list[FailedBatch] = []
        self._failures_max = limits.FAILURES_KEPT_MAX if keep_failures else 0

    def record_failure(self, failure: FailedBatch) -> None:
        self.failed += failure.count
        if len(self.failures) < self._failures_max:
            self.failures.append(failure)

    def raise_failures(self, topic: str) -> None:
        """Tell of all failures since the last time, as one error."""
        if not self.failures:
            return
        failed, self.failures = self.failures, []
        count = sum(batch.count for batch in failed)
        first = failed[0].error
        raise PublishError(
            f"{count} messages to {topic} were not acknowledged: {first.message}",
            hint=first.hint,
            operation="publish",
            object=topic,
            failed=failed,
        )
