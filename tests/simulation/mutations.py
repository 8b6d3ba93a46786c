"""Safety rules (docs/replication.md), each switched off: some seed must notice.

    python -m tests.simulation.mutations                  every mutation on its remembered seeds
    python -m tests.simulation.mutations --search NAME    look for seeds that notice it

A mutation replaces methods of the real machines (or of the simulated broker, where the rule is the broker's
to keep). Its seeds were found by searching; they go stale when the simulator changes, and are searched again.
"""

import argparse
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import msgspec
from tests.simulation.broker import Broker
from tests.simulation.runner import run_seed
from tests.simulation.scenarios import SCENARIOS

from stentor.core import cluster_events as c
from stentor.core import controller, refusals, revival
from stentor.core import replica_events as r
from stentor.core.chain_messages import Linked
from stentor.core.chain_position import ChainPosition
from stentor.core.complaints import Complaints
from stentor.core.confirmations import Confirmations
from stentor.core.controller import Controller
from stentor.core.dedupe import Dedupe
from stentor.core.downstream import Downstream
from stentor.core.membership import Membership
from stentor.core.records import ChainRecord
from stentor.core.replica import Replica

_replace = msgspec.structs.replace


@dataclass
class Mutation:
    """A rule that is switched off."""

    rule: str
    changes: list  # (class, method, what replaces it)

    @contextmanager
    def applied(self):
        with ExitStack() as stack:
            for owner, name, replacement in self.changes:
                stack.enter_context(patch.object(owner, name, replacement))
            yield


MUTATIONS: dict[str, Mutation] = {}


def mutation(name, rule, *changes):
    MUTATIONS[name] = Mutation(rule, list(changes))


# --- C2, C3: epochs and incarnations ----------------------------------------------------------------


def _any_epoch(self, epoch):
    return self._adopting is None and self.record is not None and not self.failed


def _configure_at_once(self, event, now_us):
    """The epoch is on its way to the disk, and counts already."""
    effects = CONFIGURE(self, event, now_us)
    if any(isinstance(effect, r.StoreEpoch) for effect in effects):
        return [*effects, *self._epoch_stored(event.record.epoch, now_us)]
    return effects


def _configure_any(self, event, now_us):
    """Records of older epochs are followed too."""
    if event.revision == self.revision:
        return []
    self.epoch, self.revision = 0, -1
    return CONFIGURE(self, event, now_us)


def _find_any_incarnation(self, record, me):
    self.record = record
    self.position = next((index for index, member in enumerate(record.chain) if member.same_log(me)), None)
    self.joins = record.joining is not None and record.joining.same_log(me)


CONFIGURE = Replica._configure

# --- C4, C5: activation, commit ---------------------------------------------------------------------


def _link_before_linked(self, event, link, now_us):
    """Feeds from a log that may still be cut."""
    linked, self.linked = self.linked, True
    try:
        return LINK(self, event, link, now_us)
    finally:
        self.linked = linked


LINK = Replica._link


def _own_durable(self):
    return self.durable


def _remember_epoch(self, now_us):
    """What an older epoch said of the members above still counts."""
    self.linked = False
    self._told_up = None
    self.downstream.forget(now_us)


# --- C6, C10, C14, C15: heads that are replaced, members that die -----------------------------------


def _deposed_failed(self):
    return [r.Refuse(ticket, refusals.not_active()) for ticket in self._acks.give_up()]


def _dies_quietly(self, record, survivors):
    """The chain is shorter, and nobody links anew."""
    return _replace(SHRUNK(self, record, survivors), epoch=record.epoch)


def _nothing(*_, **__):
    return []


def _tick_without_excuse(self, now_us):
    self._ticked_us = now_us


def _dead_by_lease(self, broker, now_us):
    return broker in self._expired or IS_DEAD(self, broker, now_us)


def _all_dead(self, now_us):
    return {broker for broker in self.registered if self.is_dead(broker, now_us)}


IS_DEAD = Membership.is_dead

# --- C23, C24: retention, readers -------------------------------------------------------------------


def _all_retirable(self, replica, log):
    return log.synced


_SERVES = property(lambda self: self.linked and self._adopting is None and self.position.index is not None)

# --- C7, C8, C12, C13: levels, minimum, who may lead ------------------------------------------------


def _reached_at_head(self, ack):
    return self.committed if ack == 3 else self.durable


def _always_eligible(self, record, survivors):
    """Everyone who ever left may lead."""
    gone = tuple(m for m in record.chain if not any(m.same_log(s) for s in survivors))
    return _replace(SHRUNK(self, record, survivors), eligible=(*record.eligible, *gone))


def _joined_still_eligible(self, record, joining):
    return _replace(JOINED(self, record, joining), eligible=record.eligible)


def _revive_anyone(key, record, reports, alive):
    for broker in alive:
        report = reports.of(key, broker)
        if report is not None and alive.get(broker) == report.member.incarnation and not report.failed:
            return _replace(record, epoch=record.epoch + 1, chain=(report.member,), joining=None, eligible=())
    return None


def _renew_damaged(record, member, report):
    return report.member if report.member.same_log(member) and not report.failed else None


def _first_that_was_cut(key, record, reports, alive):
    """Any copy leads that was cut, whether the others are there or not."""
    for member in (*record.chain, *record.eligible):
        report = revival._present(key, member, reports, alive)
        if report is not None and not report.failed and report.end >= record.committed:
            return revival._led_by(record, report.member)
    return None


SHRUNK, JOINED = Controller._shrunk, Controller._joined

# --- C9: links ---------------------------------------------------------------------------------------


def _reconcile_by_length(self, link):
    """Compares ends, not epochs."""
    return (
        Linked(self.epoch, link.attempt, min(self.end, link.end)) if link.end >= self.start else RECONCILE(self, link)
    )


RECONCILE = Replica._reconcile


def _offered_unchecked(self, event, now_us):
    """No check of what comes before."""
    if not self._is_from_predecessor(event.sender, event.epoch) or not self.linked or event.base != self.end:
        return OFFERED(self, event, now_us) if event.base > self.end else []
    self._above = max(self._above, event.durable)
    return [r.Take()]


OFFERED = Replica._offered


def _never(*_, **__):
    return False


def _always(*_, **__):
    return True


# --- C11: joiners -------------------------------------------------------------------------------------


_READY = property(lambda self: self.joint)


def _no_joint(self):
    return self.durable


# --- C16, C17: the controller -------------------------------------------------------------------------


def _nothing_compared(self):
    return {}


def _unknown_is_done(self, propose, outcome):
    revision = outcome if isinstance(outcome, int) or outcome is None else self.store.revision + 1
    self.do(self.cluster.step(c.Proposed(propose, revision), self.clock()))


# --- C18, C19: producers ------------------------------------------------------------------------------


def _answer_at_once(self, event, resend):
    return r.Answer(event.ticket, resend.base_offset, self.epoch, resend.appended_at_us)


def _all_fresh(self, producer_id, generation, sequence, checksum):
    return None


def _last_of_producer(self, log, publish):
    """What a producer sends too late must be in the log, or so one would think."""
    return next((b for b in reversed(log.batches) if b.producer_id == publish.producer_id), None)


def _not_derived(self, replica, log):
    """The log was cut; what was derived from it was not."""


# --- C29, C30, C31: who can write, who reaches the store, where the messages end -----------------------


def _all_able(self, now_us):
    return frozenset(self.hearing(now_us)), frozenset()


def _enough_is_enough(self, record, rest, able):
    return len(rest) >= max(1, record.min_replicas)


def _heard_by_all(self, now_us, wanted, *, unheard, joins):
    return COMPLAINT(self, now_us, wanted, unheard=False, joins=joins)


def _patient_with_joiners(self, now_us, wanted, *, unheard, joins):
    """A joiner gets as much time as a member."""
    joint, self.joint = self.joint, False
    try:
        return COMPLAINT(self, now_us, wanted, unheard=unheard, joins=joins)
    finally:
        self.joint = joint


COMPLAINT = Downstream.complaint


def _asks_nobody(self, now_us):
    self._missing = set()
    return self._finish(now_us)


def _knows_although_short(self):
    return self._replica.position.is_head and self._replica.serves


def _first_complaint(self, key, record):
    found = [complaint for complaint in self._complaints_now(key, record) if complaint.member in record.chain]
    return min(found, key=lambda complaint: record.chain.index(complaint.member), default=None)


SUCCESSOR = (Complaints, "of_successor", _nothing)
OWN_DISK = (Complaints, "of_own_disk", _nothing)
HELD = (Complaints, "_held", _nothing)
FIRST_BLAMED = (Controller, "_complaint", _first_complaint)
EPOCHS = (Replica, "_current", _any_epoch)
STORED = (Replica, "_configure", _configure_at_once)
INCARNATIONS = (ChainPosition, "find", _find_any_incarnation)
RECONCILED = (Replica, "_reconcile", _reconcile_by_length)
CONTINUED = (Replica, "_offered", _offered_unchecked)
HALTS = (Replica, "_loses_committed", _never)
WAITS = (controller, "revived", _revive_anyone)
DAMAGED = (controller, "renewed", _renew_damaged)
CUT = (revival, "_led_by_the_longest", _first_that_was_cut)
COMPARED = (Broker, "controller_compared", _nothing_compared)

mutation("epochs", "C2: messages of other epochs are refused", EPOCHS)
mutation("old-records", "C2: older records are refused", (Replica, "_configure", _configure_any))
mutation("epoch-stored", "C2: an epoch is on disk before it is acted on", STORED)
mutation("incarnations", "C3: a restarted member waits until it is named anew", INCARNATIONS)
mutation("top-down", "C4: links are made from the head down", (Replica, "_link", _link_before_linked))
mutation("commit-minimum", "C5: committed is what every member has on disk", (Replica, "durable_here", _own_durable))
mutation("forget-epoch", "C5: older epochs' durable values are discarded", (Replica, "_forget_epoch", _remember_epoch))
mutation("deposed", "C6: what a deposed head took is unknown, never failed", (Replica, "_depose", _deposed_failed))
mutation("confirmed", "C6: a head that is cut off takes nothing", (Broker, "takes", _always))
mutation("mutual", "C6: who is not heard is cut off too", (Membership, "_is_deaf", _never))
mutation("told", "C6: a head that was replaced hears it from its successor", (Replica, "_tell_replaced", _nothing))
mutation("quorum", "C7: quorum counts a majority of the factor", (Replica, "_reached", _reached_at_head))
mutation("minimum", "C8: a chain that is too short commits nothing", (ChainRecord, "is_short", property(_never)))
mutation(
    "eligible",
    "C8: only who left by the change that crossed the minimum may lead",
    (Controller, "_shrunk", _always_eligible),
    (Controller, "_joined", _joined_still_eligible),
)
mutation("reconcile", "C9: links compare epoch tables", RECONCILED)
mutation("continues", "C9: what is taken continues this log (masked by `reconcile`: both off)", RECONCILED, CONTINUED)
mutation("halt", "C9: a log is never cut below its commit point (masked by `damaged`: both off)", HALTS, DAMAGED)
mutation("death", "C10: a death is a new epoch", (Controller, "_shrunk", _dies_quietly))
mutation("joint", "C11: in joint mode nothing is committed without the joiner", (Replica, "_own_durable", _no_joint))
mutation("ready", "C11: a joiner is ready when it holds all that is committed", (Downstream, "joiner_is_ready", _READY))
mutation("others-wait", "C12: with the last member gone, others wait", WAITS)
mutation("damaged", "C13: a damaged copy does not keep its place", DAMAGED)
mutation("cut-together", "C13: copies that were cut lead only when all are there", CUT)
mutation(
    "grey", "C14: a member whose disk makes no progress leaves (masked by `own-disk`: both off)", SUCCESSOR, OWN_DISK
)
mutation(
    "passed-on", "C15: the controller hears of a cut also where it cuts itself off", (Membership, "_passes_on", _never)
)
mutation("own-lag", "C15: who stood still itself counts anew", (Membership, "tick", _tick_without_excuse))
mutation("second-observer", "C15: silence needs a second observer", (Membership, "_second_observer", _always))
mutation("leases", "C15: a lapsed lease alone is no death", (Membership, "is_dead", _dead_by_lease))
mutation("wave", "C15: few are given up at a time", (Membership, "dead", _all_dead))
mutation("controller-key", "C16: every change compares the controller key", COMPARED)
mutation("read-back", "C17: an unknown outcome is read back", (Broker, "proposed", _unknown_is_done))
mutation("resend-level", "C18: a resend is answered only at its level", (Replica, "_answer_resend", _answer_at_once))
mutation("dedupe", "C18: a batch is written once", (Dedupe, "check", _all_fresh))
mutation("found", "C32: only a batch that is in the log counts as written", (Broker, "find", _last_of_producer))
mutation("derived", "C19: derived state is made anew after a truncation", (Broker, "derive_again", _not_derived))
mutation("retention", "C23: retention stops at the commit point", (Broker, "retirable", _all_retirable))
mutation("renewed", "C24: a member renews its commit point before it serves", (Replica, "serves", _SERVES))
mutation("blame", "C14: nobody is blamed for those after it (said, and judged: both off)", HELD, FIRST_BLAMED)
mutation("own-disk", "C31: a head reports that its own disk hangs", OWN_DISK)
mutation("unable", "C31: a member whose disk is full leaves", (Membership, "writers", _all_able))
mutation("able", "C31: those that stay can write", (Controller, "_may_go_on", _enough_is_enough))
mutation(
    "link-cut", "C15, C31: a cut between two neighbours is noticed as silence", (Downstream, "complaint", _heard_by_all)
)
mutation(
    "joint-stall", "C11: a joiner in joint mode gets little time", (Downstream, "complaint", _patient_with_joiners)
)
mutation(
    "hearsay", "C28: a chain that does without this member is looked up, not believed", (Broker, "believes", _always)
)
mutation("resign", "C29: a controller without the store gives the office up", (Membership, "should_resign", _never))
mutation(
    "confirm",
    "C30: the chain confirms its epoch before a reader is told the end",
    (Confirmations, "_send", _asks_nobody),
)
mutation(
    "short-end",
    "C30: a chain that is too short does not know its end",
    (Confirmations, "_knows_all", _knows_although_short),
)

# What notices each: seeds that were found by searching, or a directed run.
SEEDS = {
    "deposed": [2, 3, 4],
    "death": [1],
    "retention": [4, 6, 9],
    "renewed": [1],
    "epochs": [1, 5, 7],
    "old-records": [1],
    "epoch-stored": [1],
    "incarnations": [1, 2, 3],
    "top-down": [21, 36, 61],
    "commit-minimum": [1],
    "quorum": [2],
    "minimum": [20, 42],
    "eligible": [3, 23, 33],
    "reconcile": [1, 2, 5],
    "continues": [1, 2, 5],
    "joint": [1, 3, 4],
    "ready": [1],
    "others-wait": [4, 7, 19],
    "damaged": [5, 13, 15],
    "cut-together": [118],
    "read-back": [3, 4, 8],
    "resend-level": [1],
    "dedupe": [1],
    "derived": [15, 19, 32],
}
# What brings about the situation that a rule is for, where that is rare.
FAVOURED = {
    "top-down": {"favour": ("head", "cut", "split", "pause", "factor"), "rates": {"sync_us": 20_000}},
    "incarnations": {"favour": ("bounce", "head_bounces"), "rates": {"torn": 1.0, "sync_us": 20_000}},
    "minimum": {"favour": ("crash", "head", "tail", "power"), "rates": {"sync_error": 0.0}},
    "others-wait": {"favour": ("crash", "head", "tail", "power"), "rates": {"sync_error": 0.0}},
    "reconcile": {"favour": ("head", "cut", "split", "pause"), "rates": {"sync_us": 20_000}},
    "continues": {"favour": ("head", "cut", "split", "pause"), "rates": {"sync_us": 20_000}},
    "derived": {"favour": ("head", "cut", "split", "pause"), "rates": {"sync_us": 20_000}},
    "joint": {"favour": ("crash", "bounce", "tail"), "rates": {"sync_us": 20_000}},
    "read-back": {"favour": ("crash", "bounce", "store_away"), "rates": {"unknown": 0.2}},
    "epochs": {"favour": ("bounce", "pause", "head_bounces"), "rates": {"reorder": 0.2, "delay_us": 20_000}},
    "damaged": {"favour": ("crash", "shorten", "head"), "rates": {"retention": 0.0}},
    "cut-together": {"favour": ("crash", "shorten", "head"), "rates": {"retention": 0.0}},
    "eligible": {"favour": ("crash", "head", "tail", "power"), "rates": {"sync_error": 0.0}},
}
DIRECTED = {
    "found": "poisoned-producer",
    "forget-epoch": "shorter-head",
    "halt": "restored-head",
    "controller-key": "replaced-controller",
    "confirmed": "isolated-head",
    "mutual": "mute-head",
    "told": "sidelined-head",
    "grey": "grey-member",
    "passed-on": "unheard-complaint",
    "own-lag": "standstill",
    "second-observer": "lone-observer",
    "leases": "lapsed-leases",
    "wave": "wave-of-silence",
    "blame": "blame",
    "own-disk": "grey-member",
    "unable": "full-member",
    "able": "all-full",
    "link-cut": "neighbours-cut",
    "joint-stall": "joiner-hangs",
    "hearsay": "liar",
    "resign": "storeless-controller",
    "confirm": "paused-head",
    "short-end": "one-of-three-returns",
}


def caught_by(name, run, *arguments):
    """What a run says about a mutation; empty when it notices nothing."""
    with MUTATIONS[name].applied():
        try:
            run(*arguments)
        except Exception as error:  # noqa: BLE001 - a crash of a machine is a finding too
            return f"{type(error).__name__}: {error}"
    return ""


def favoured(name, seed):
    run_seed(seed, **FAVOURED.get(name, {}))


def caught(name, *, more=0):
    """Who notices a mutation: its directed run, a remembered seed, or one of some more; None if nobody does."""
    if name in DIRECTED:
        return caught_by(name, SCENARIOS[DIRECTED[name]]) or None
    for seed in (*SEEDS.get(name, ()), *range(1, more + 1)):
        failure = caught_by(name, favoured, name, seed)
        if failure:
            return f"seed {seed}: {failure}"
    return None


def search(name, first, count, enough):
    found = []
    for seed in range(first, first + count):
        failure = caught_by(name, favoured, name, seed)
        if failure:
            favoured(name, seed)  # raises if it fails without the mutation too
            found.append(seed)
            print(f"{name}: seed {seed}: {failure[:160]}", flush=True)
            if len(found) == enough:
                break
    print(f"{name}: {found} of {seed - first + 1} seeds", flush=True)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--search", nargs="*", metavar="NAME")
    parser.add_argument("--from", dest="first", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=300)
    parser.add_argument("--enough", type=int, default=2)
    options = parser.parse_args()
    if options.search is not None:
        for name in options.search or MUTATIONS:
            search(name, options.first, options.seeds, options.enough)
        return
    missed = []
    for name, held in MUTATIONS.items():
        by = caught(name)
        print(f"{name:15} {held.rule}\n{'':15} {(by or 'NOT NOTICED')[:150]}", flush=True)
        missed += [] if by else [name]
    print(f"{len(MUTATIONS)} mutations, not caught: {missed or 'none'}")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
