"""A queue's partition without a broker: a list of batches, the state derived from it, and a head."""

from stentor.core import queue_events as q
from stentor.core.queue import QueueState
from stentor.core.queue_head import QueueHead, QueuePolicy
from stentor.core.queue_jobs import pairs
from stentor.wire import batch, queue_rows
from stentor.wire.header import HEADER_BYTES, stamp, unpack

MS = 1_000
S = 1_000_000
WALL = 1_700_000_000 * S


def new_state(*, ordered=False):
    return QueueState(queue_rows.known_steps, queue_rows.terms, queue_rows.hashes if ordered else None)


class QueueLog:
    """One partition: puts jobs, lets a head decide, and commits when it is told to."""

    def __init__(self, *, ordered=False, policy=None):
        self.ordered, self.policy = ordered, policy or QueuePolicy()
        self.batches = []
        self.now = 0
        self.end = self.committed = 0
        self.state = new_state(ordered=ordered)
        self.head = None
        self.answers = {}
        self.tickets = 0
        self.takes = True
        self.checks = True

    # --- the log --------------------------------------------------------------------------------

    def append(self, data):
        view = memoryview(bytearray(data))
        header = unpack(view)
        stamp(view, 0, base_offset=self.end, epoch=1, appended_at_us=WALL + self.now)
        header = unpack(view)
        self.batches.append(bytes(view))
        self.end = header.end_offset
        self.state.apply(header, view[HEADER_BYTES:])
        return header.base_offset

    def put(self, *values, keys=None, **terms):
        """Jobs in one batch; the first offset."""
        headers = queue_rows.headers_of(**terms) or None
        count = len(values)
        encoded = batch.encode(
            [WALL + self.now] * count,
            keys or [None] * count,
            list(values),
            None if headers is None else [headers] * count,
        )
        if headers:
            encoded = queue_rows.with_terms(encoded, unique="unique" in terms)
        return self.append(queue_rows.whole(encoded, topic_id=1, partition=0))

    def commit(self, end=None):
        self.committed = self.end if end is None else end
        self.state.commit(self.committed)
        if self.head is not None:
            self._do(q.QueueCommitted(self.committed))

    def rederived(self, end=None):
        """The state again, from the batches below an end."""
        state = new_state(ordered=self.ordered)
        for data in self.batches:
            header = unpack(data)
            if end is None or header.end_offset <= end:
                state.apply(header, memoryview(data)[HEADER_BYTES:])
        return state

    def fail_over(self, end=None):
        """Another member leads, whose log ends here."""
        self.end = self.end if end is None else end
        self.state = self.rederived(self.end)
        self.batches = [data for data in self.batches if unpack(data).end_offset <= self.end]
        self.committed = self.end
        self.state.commit(self.end)
        self.lead()

    # --- the head -------------------------------------------------------------------------------

    def lead(self):
        self.head = QueueHead(self.state, self.policy)
        self.answers = {}

    def _do(self, event):
        for effect in self.head.step(event, self.now):
            if isinstance(effect, q.AppendSteps):
                if not self.takes:
                    self._do(q.StepsRefused())
                    continue
                self.append(queue_rows.encode_steps(effect.steps, topic_id=1, partition=0))
                self._do(q.StepsAppended(self.end))
            else:
                self.answers[effect.ticket] = effect
        if self.checks:
            self.state.check_invariants()
            self.head.check_invariants()

    def ask(self, event, *args, turn=True, **fields):
        self.tickets += 1
        self._do(event(self.tickets, *args, **fields))
        if turn:
            self.turn()
        return self.tickets

    def turn_once(self):
        """One turn, though the head may have more to do."""
        self._do(q.QueueTurn(self.committed, WALL + self.now))
        self.commit()

    def turn(self, *, commit=True):
        self._do(q.QueueTurn(self.committed, WALL + self.now))
        if commit:
            self.commit()
            self._do(q.QueueTurn(self.committed, WALL + self.now))
            self.commit()
            while self.head.unfinished and self.takes:
                self._do(q.QueueTurn(self.committed, WALL + self.now))
                self.commit()

    def hear(self, holder, *limits, **shown):
        return self.answers[self.ask(q.HolderHeard, holder, list(limits), **shown)]

    def take(self, holder, number, most=10, **how):
        """What a holder gets: [(offset, attempt)]; None while it waits."""
        return self.given(self.ask(q.JobsWanted, holder, number, most, **how))

    def given(self, ticket):
        answer = self.answers.get(ticket)
        if answer is None or isinstance(answer, q.RefuseAsker):
            return answer and answer.why
        fresh = [(offset, 1) for first, count in pairs(answer.fresh) for offset in range(first, first + count)]
        return sorted(fresh + list(zip(answer.noted, answer.attempts, strict=True)))

    def settle(self, holder, sequence, first=(), later=(), back=(), **more):
        """Jobs and attempts that were refused."""
        asked = self.ask(q.JobsSettled, holder, sequence, list(first), list(later), list(back), **more)
        answer = self.answers[asked]
        return answer.refused if isinstance(answer, q.AnswerSettled) else answer.why

    def passes(self, seconds):
        """Time, a tenth of a second at a time."""
        for _ in range(round(seconds * 10)):
            self.now += 100 * MS
            self._do(q.QueueTick())
            self.turn()
