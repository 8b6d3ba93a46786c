"""What this broker tells the controller about its replicas: everything once, and then what changed.

Reports are numbered. The controller takes changes only if it has heard the report before them; if not, it asks, and is
told everything. So a report may get lost, a controller may be new, and nobody counts on what was never heard. With
thousands of partitions everything is megabytes, and reading it would hold up the controller's loop every time that one
partition changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from stentor import limits
from stentor.wire import frames, peer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stentor.broker.cluster.interfaces import LocalCopy
    from stentor.broker.cluster.peer_links import Peers
    from stentor.broker.environment import BrokerIdentity, Environment
    from stentor.core.chain_messages import ReplicaReport
    from stentor.core.cluster import ClusterMember
    from stentor.core.records import Key


class ControllerWay(Protocol):
    """How a report gets to the controller."""

    @property
    def machine(self) -> ClusterMember: ...
    @property
    def closed(self) -> bool: ...

    def way_to_controller(self) -> tuple[str, bool]: ...
    def heard_reports(self, said: peer.Reports) -> None: ...


class Reporting:
    """Reports to whoever is the controller."""

    def __init__(
        self,
        environment: Environment,
        identity: BrokerIdentity,
        copies: Mapping[Key, LocalCopy],
        peers: Peers,
        way: ControllerWay,
    ) -> None:
        self._loop = environment.loop
        self._identity = identity
        self._copies = copies
        self._peers = peers
        self._way = way
        self._due = False
        self._changed: set[Key] | None = set()  # partitions to report; None: look at all
        self._told: dict[Key, ReplicaReport] = {}
        self._told_to = ("", 0)  # which controller that is, as of which revision of its key
        self._number = 0

    def soon(self, key: Key | None = None) -> None:
        """Tell the controller about one partition, or all that changed; what happens within a moment is one report."""
        if key is None:
            self._changed = None
        elif self._changed is not None:
            self._changed.add(key)
        if not self._due:
            self._due = True
            self._loop.call_later(limits.GATHER_S, self._now)

    def everything(self) -> None:
        """The controller has missed something."""
        self._told_to = ("", 0)
        self.soon()

    def _now(self) -> None:
        self._due = False
        keys, self._changed = self._changed, set()
        if self._way.closed:
            return
        me = self._identity.broker_id
        to, pass_on = self._way.way_to_controller()
        if not to:
            return
        told_to = (to, self._way.machine.membership.controller_revision)
        knows = to == me or self._peers.knows(to, frames.REPORT_CHANGES)
        partial = knows and not pass_on and told_to == self._told_to
        self._told_to = ("", 0) if pass_on else told_to
        self._number += 1
        report = self._changes(keys) if partial else self._everything(pass_on=pass_on)
        if to == me:
            self._way.heard_reports(report)
        else:
            self._peers.send(to, report)

    def _everything(self, *, pass_on: bool) -> peer.Reports:
        self._told = {key: _report(copy) for key, copy in self._copies.items()}
        rows = [(*key, report) for key, report in self._told.items()]
        return peer.Reports(self._identity.broker_id, self._identity.incarnation, rows, pass_on, number=self._number)

    def _changes(self, keys: set[Key] | None) -> peer.Reports:
        copies, told = self._copies, self._told
        rows: list[tuple[int, int, ReplicaReport]] = []
        for key in copies if keys is None else keys:
            copy = copies.get(key)
            if copy is not None and told.get(key) != (report := _report(copy)):
                told[key] = report
                rows.append((*key, report))
        gone = [key for key in (told if keys is None else keys) if key in told and key not in copies]
        for key in gone:
            del told[key]
        return peer.Reports(
            self._identity.broker_id,
            self._identity.incarnation,
            rows,
            number=self._number,
            partial=True,
            gone=gone,
        )


def _report(copy: LocalCopy) -> ReplicaReport:
    report = copy.replica.report()
    return msgspec.structs.replace(report, incomplete=True) if copy.log.damaged else report
