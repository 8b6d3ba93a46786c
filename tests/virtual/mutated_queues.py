"""What replaces rules of work queues when they are switched off."""

from stentor.core.queue import QueueState
from stentor.core.queue_head import QueueHead

_hear = QueueHead._hear
_back = QueueState._back
_appended = QueueHead._appended


def hear_once(self, event, now_us):
    """A lease is not renewed."""
    before = self._heard.get(event.holder)
    effects = _hear(self, event, now_us)
    if before is not None and event.holder in self._heard:
        self._heard[event.holder] = before
    return effects


def back_uncounted(self, back, now_us):
    """An attempt that began does not count."""
    before = self.jobs.get(back.offset)
    held = before.holder if before is not None else self.attempts(back.offset)
    _back(self, back, now_us)
    job = self.jobs[back.offset]
    if held and back.counted and not back.dead:
        job.attempts -= 1


def holds_any(self, holder, offset, attempt):
    """Whoever ever had a job may speak for it."""
    return self.mark(offset) not in (0, 1) and not (offset in self.jobs and not self.jobs[offset].holder)


def settle_anyhow(self):
    """A client sends whatever it is told."""
    self._state = 1


def holds_no_run(self, holder, first, count):
    return False


def appended_and_told(self, end):
    """Jobs are handed out, and ends answered, before that is committed."""
    effects = _appended(self, end)
    return effects + self._committed(end)


async def led_as_far_as_it_knows(self, topic_id, index):
    """The head believes that it is the head."""
    return self.lead(topic_id, index)


def nobody_new(self, state, policy):
    """A new head knows of no leases: what somebody works on is handed out again at once."""
    _init(self, state, policy)
    self._heard = dict.fromkeys(state.holders, -policy.lease_us)


_init = QueueHead.__init__
