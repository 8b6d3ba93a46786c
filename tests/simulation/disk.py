"""What a simulated broker has on disk."""

from bisect import bisect_left
from dataclasses import dataclass, field
from operator import attrgetter

from stentor.core.dedupe import Dedupe
from stentor.core.records import EpochTable


@dataclass(frozen=True)
class Batch:
    """A batch by its header; `body_checksum` stands for its content."""

    base_offset: int
    end_offset: int
    epoch: int
    producer_id: int
    generation: int
    sequence: int
    body_checksum: int
    appended_at_us: int

    @property
    def name(self):
        return self.producer_id, self.generation, self.sequence


_BASE = attrgetter("base_offset")


@dataclass
class Log:
    """One copy of a partition's log."""

    log_id: int
    start: int = 0
    batches: list = field(default_factory=list)
    synced: int = 0  # how many batches are on disk
    snapshot: bytes | None = None  # of the state derived from what is below `start`
    epoch: int = 0  # stored: the highest adopted
    floor: int = 0  # stored: the commit floor
    checked: int = 0  # stored with the floor: up to here the log was on disk
    failed: str = ""
    excused: bool = False  # a fault took away what was on disk, and it was not made whole yet
    syncs: list = field(default_factory=list)  # under way: how many batches each will bring to disk

    @property
    def end(self):
        return self.batches[-1].end_offset if self.batches else self.start

    @property
    def synced_end(self):
        return self.batches[self.synced - 1].end_offset if self.synced else self.start

    @property
    def whole(self):
        return not self.failed and not self.excused

    def position(self, offset):
        """The index of the first batch at or after an offset."""
        return bisect_left(self.batches, offset, key=_BASE)

    def cut(self, end):
        while self.batches and self.batches[-1].end_offset > end:
            self.batches.pop()
        self.synced = len(self.batches)
        self.checked = min(self.checked, end)
        for sync in self.syncs:
            sync[0] = min(sync[0], self.synced)

    def begin(self, start, snapshot):
        """Begin anew."""
        self.cut(0)
        self.batches.clear()
        self.synced, self.start, self.snapshot = 0, start, snapshot
        for sync in self.syncs:
            sync[0] = 0

    def retire(self, count):
        """Let the first batches go; what was derived from them is kept."""
        if count:
            dedupe = Dedupe()
            dedupe.restore(self.snapshot)
            for batch in self.batches[:count]:
                dedupe.record_batch(batch)
            self.snapshot = dedupe.snapshot()
            self.start = self.batches[count - 1].end_offset
            del self.batches[:count]
            self.synced = max(0, self.synced - count)
            for sync in self.syncs:
                sync[0] = max(0, sync[0] - count)

    def table(self):
        return EpochTable((b.epoch, b.base_offset) for b in self.batches).entries()

    def derive(self, dedupe):
        """State derived from the log's prefix (C19)."""
        dedupe.restore(self.snapshot)
        for batch in self.batches:
            dedupe.record_batch(batch)


@dataclass
class Disk:
    """What a crash leaves."""

    incarnation: int = 0
    logs: dict = field(default_factory=dict)  # key -> Log
    lost: set = field(default_factory=set)  # ids of logs that a fault took away
