"""What the machines count: a replica, the membership of the cluster, a controller.

Every field has a default, because whoever reads statistics may ask a broker of another version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from stentor.core.replica import Replica


class ReplicaStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Where one copy of a partition stands."""

    position: int = -1  # in its chain, 0 is the head; -1: outside of it
    epoch: int = 0
    linked: bool = False  # its log agrees with its predecessor's
    active: bool = False  # its chain is at work, as far as it knows
    end: int = 0  # offsets: the end of its log,
    durable: int = 0  # of what its disk has,
    committed: int = 0  # of what every member's disk has
    failed: str = ""  # why it takes no more writes; empty while it does
    joint: bool = False  # it commits only what a joiner has as well
    waiting: int = 0  # publishes without an answer
    passed_over: int = 0  # batches that a state which is derived from the log could not read (C33)


class MembershipStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """How a broker sees the others, and itself among them."""

    controller: str = ""  # its broker id; empty while there is none
    peers: dict[str, str] = {}  # each other broker: heard, silent or refused
    lags: int = 0  # how often this broker's own loop stood still
    reaches_store: bool = True
    writes: bool = True  # its disk takes writes


class ControllerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """All chains, as the controller sees them."""

    partitions: int = 0
    short: int = 0  # with fewer members than they should have
    joining: int = 0  # with a copy that is being filled
    chain_lengths: dict[int, int] = {}  # how many chains have so many members
    behind: int = 0  # of which the store knows an older epoch than their members
    removals: int = 0
    changes: int = 0


def of_replica(replica: Replica, *, waiting: int) -> ReplicaStatistics:
    """Where this copy stands."""
    index = replica.position.index
    return ReplicaStatistics(
        position=-1 if index is None else index,
        epoch=replica.epoch,
        linked=replica.linked,
        active=replica.active,
        end=replica.end,
        durable=replica.durable,
        committed=replica.committed,
        failed=replica.failed,
        joint=replica.downstream.joint,
        waiting=waiting,
        passed_over=replica.states.passed_over,
    )
