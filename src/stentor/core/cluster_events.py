"""Events and effects of the cluster machine (`core.cluster`).

Whoever drives the machine performs its effects in their order, and tells it with an event what became of those that
name one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from stentor.core.chain_messages import PartitionMessage, ReplicaReport
from stentor.core.controller import BrokerRecord, Propose, TopicPlan
from stentor.core.membership import ControllerKey, Heartbeat
from stentor.core.records import HeldRecord, Key
from stentor.core.slowness import SyncPace

# --- events -------------------------------------------------------------------------------------


class Ticked(msgspec.Struct, frozen=True):
    """A beat of the cluster. What this broker says of itself with its heartbeat."""

    load: int = 0  # connections
    busy: bool = False  # its disk has more to do than it can
    writes: bool = True  # its disk takes writes (C31)
    pace: SyncPace = SyncPace()  # how long its syncs take (C14)


class Beaten(msgspec.Struct, frozen=True):
    """A heartbeat of another broker came."""

    heartbeat: Heartbeat


class Refused(msgspec.Struct, frozen=True):
    """A connection to a broker was refused: no process is there any more."""

    broker: str


class Registered(msgspec.Struct, frozen=True):
    """The registered brokers, from the store."""

    brokers: Mapping[str, BrokerRecord]


class LivenessSeen(msgspec.Struct, frozen=True):
    """A broker's liveness key in the store came or went: a slow second observer (E1)."""

    broker: str
    alive: bool


class StoreAsked(msgspec.Struct, frozen=True):
    """The store was asked for a sign of life (C29)."""

    answers: bool


class ControllerSeen(msgspec.Struct, frozen=True):
    """The store says who the controller is; None: nobody."""

    key: ControllerKey | None
    revision: int


class TookOver(msgspec.Struct, frozen=True):
    """The swap of a TakeOver effect is through."""

    key: ControllerKey
    revision: int


class TakeoverFailed(msgspec.Struct, frozen=True):
    """Someone else was first, or the store did not answer."""


class Loaded(msgspec.Struct, frozen=True):
    """Everything that is in the store, after a LoadAll effect."""

    brokers: Mapping[str, BrokerRecord]
    topics: Mapping[int, TopicPlan]
    records: Mapping[Key, HeldRecord]
    active: str = ""


class ActiveSeen(msgspec.Struct, frozen=True):
    """The store says which broker serves active-passive topics (C26)."""

    broker: str


class TopicsSeen(msgspec.Struct, frozen=True):
    """Topics came, changed or went (None)."""

    plans: Mapping[int, TopicPlan | None]


class RecordsSeen(msgspec.Struct, frozen=True):
    """Chains came, changed or went (None)."""

    records: Mapping[Key, HeldRecord | None]


class MembersSaid(msgspec.Struct, frozen=True):
    """Members of chains said something within a moment; it is planned together."""

    said: Iterable[tuple[Key, PartitionMessage]]


class Reported(msgspec.Struct, frozen=True):
    """A broker says what it holds."""

    broker: str
    incarnation: int
    reports: Mapping[Key, ReplicaReport]
    number: int = 0


class ReportedChanges(msgspec.Struct, frozen=True):
    """A broker says what changed of what it holds."""

    broker: str
    incarnation: int
    reports: Mapping[Key, ReplicaReport]
    gone: Iterable[Key]
    number: int


class Proposed(msgspec.Struct, frozen=True):
    """The swap of a Propose effect succeeded at this revision, or not (None)."""

    propose: Propose
    revision: int | None


class PlannedOn(msgspec.Struct, frozen=True):
    """Others had their turn after a PlanOn effect."""


ClusterEvent = (
    Ticked
    | Beaten
    | Refused
    | Registered
    | LivenessSeen
    | StoreAsked
    | ControllerSeen
    | TookOver
    | TakeoverFailed
    | Loaded
    | ActiveSeen
    | TopicsSeen
    | RecordsSeen
    | MembersSaid
    | Reported
    | ReportedChanges
    | Proposed
    | PlannedOn
)

# --- effects ------------------------------------------------------------------------------------


class Beat(msgspec.Struct, frozen=True):
    """Send this heartbeat to every other broker."""

    heartbeat: Heartbeat


class TakeOver(msgspec.Struct, frozen=True):
    """Swap the controller key to this broker if it has this revision, then report TookOver or TakeoverFailed."""

    revision: int


class LoadAll(msgspec.Struct, frozen=True):
    """Read everything from the store, then report Loaded."""


class Push(msgspec.Struct, frozen=True):
    """Tell every broker about these records, which were swapped in."""

    records: list[tuple[Key, HeldRecord]]
    complete: bool = False  # these are all there are


class ReportReplicas(msgspec.Struct, frozen=True):
    """Tell the controller what this broker holds."""


class AskReports(msgspec.Struct, frozen=True):
    """Ask a broker for everything it holds: a report of it was missed."""

    broker: str


class PlanOn(msgspec.Struct, frozen=True):
    """There is more to plan: report PlannedOn when others had their turn."""


ClusterEffect = Beat | TakeOver | LoadAll | Push | ReportReplicas | AskReports | PlanOn | Propose
