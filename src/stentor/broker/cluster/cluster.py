"""This broker's part in the cluster: performs what the cluster machine says, on the store and the peers.

    store ── watch ──► catalogue ──► routes to clients, records to replicas
    peers ── heartbeats, reports ──► cluster machine ──► takeover, proposals ──► store ──► push to all

A broker on its own is a cluster of one with an embedded store: it takes the controller's key, names itself anew in
its chains, and goes on. Nothing here is on the way of a message: with the store gone, chains go on (C27).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor import limits
from stentor._version import __version__
from stentor.broker.catalogue import HeldTopic, News, broker_key, encode
from stentor.broker.cluster.active_passive import ActivePassive
from stentor.broker.cluster.controlling import Controlling
from stentor.broker.cluster.disk_health import DiskHealth
from stentor.broker.cluster.hearsay import Hearsay
from stentor.broker.cluster.peer_links import Peers
from stentor.broker.cluster.reporting import Reporting
from stentor.broker.cluster.routes import Routes
from stentor.broker.cluster.senders import Senders, passed_on
from stentor.broker.cluster.store_contact import StoreContact
from stentor.broker.cluster.store_look import StoreLook
from stentor.broker.cluster.store_rollback import StoreRollback
from stentor.broker.cluster.topic_admin import deleted_error
from stentor.broker.cluster.trust import LEVEL_KNOWN
from stentor.broker.disk_threads import SyncLoad
from stentor.core import cluster as effects
from stentor.core.chain_messages import Adopt, Complaint, Confirm, Confirmed, Held, JoinerReady
from stentor.core.cluster import ClusterMember
from stentor.core.controller import BrokerRecord, HeldRecord, Propose
from stentor.core.membership import Heartbeat
from stentor.core.replica_events import Offered, Received
from stentor.errors import CoordinationUnavailable, NotReady, StentorError
from stentor.ports import Changed
from stentor.wire import peer

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from stentor.broker.broker import Broker
    from stentor.broker.sessions.session import Session
    from stentor.core.chain_messages import PartitionMessage
    from stentor.core.records import Key

logger = logging.getLogger(__name__)

_IDENTITY = "identity/cluster"
_GATHER_S = 0.01
_RESTART_US = int(2 * limits.PEER_DIAL_S * 1_000_000)


class Cluster:
    """The cluster as this broker takes part in it."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._loop = broker.loop
        self.peers = Peers(broker)
        self.peers.on_connected = self._peer_connected
        self.peers.on_refused = self._peer_refused
        self.member: ClusterMember | None = None
        self.confirmed = True  # C6: somebody who could replace this broker would have told it
        self._planning_on = False
        self._member_messages: list[tuple[Key, PartitionMessage]] = []
        self._fresh = True  # the records are not those from before a time of being cut off
        self._refreshing = False
        self._pinged_us = 0
        self._restarted_us: dict[str, int] = {}
        self.unheard: frozenset[str] = frozenset()
        self._tasks: set[asyncio.Task[Any]] = set()
        self.routes = Routes(broker)
        self.restored = StoreRollback()
        self.hearsay = Hearsay(broker, self)
        self.senders = Senders(broker)
        self._look = StoreLook(broker, self.restored, lambda: self.spawn(self.look_again()))
        self.reporting = Reporting(broker, self)
        self._active = ActivePassive(broker, self)
        self._controlling = Controlling(broker, self)
        self._views: dict[str, str] = {}
        self.disk: DiskHealth | None = None  # from when the broker has joined
        self.store_answers = True
        self._sync_load: SyncLoad | None = None
        self.closed = False

    def now_us(self) -> int:
        return int(self._broker.clock.monotonic() * 1_000_000)

    # --- start ----------------------------------------------------------------------------------

    async def identify(self) -> str:
        """The cluster's id: made by whoever comes first."""
        store = self._broker.store
        while True:
            found = await store.get(_IDENTITY)
            if found is not None:
                return found.value.decode()
            founding = self._broker.trust.founding()
            await store.swap(expect={_IDENTITY: 0}, put={_IDENTITY: uuid.uuid4().hex.encode(), **founding})

    async def learn(self) -> int:
        """Read everything; returns the revision from which to watch."""
        found = await self._broker.store.range("")
        self._broker.catalogue.replace(found.entries, found.revision, News())
        return found.revision

    def remembered_incarnation(self) -> int:
        """Which life of this broker the others know of (C3)."""
        record = self._broker.catalogue.brokers.get(self._broker.broker_id)
        return 0 if record is None else record.incarnation

    async def join(self, revision: int) -> None:
        """Register, listen to the store, and take part."""
        broker = self._broker
        self.member = ClusterMember(
            broker.broker_id, broker.incarnation, self.now_us(), lambda: secrets.randbits(62) + 1
        )
        self.member.cautious = self.restored.accepted
        await broker.waiting.insist(self.register)
        self.spawn(self._watch(revision))
        found = await broker.waiting.insist(partial(broker.store.range, ""))
        news = News(brokers=True, chains=dict(broker.catalogue.chains))
        broker.catalogue.replace(found.entries, found.revision, news)
        self.take_news(news)
        probe_s = limits.DISK_PROBE_ALONE_S if broker.replicas.single else limits.DISK_PROBE_S
        self.disk = DiskHealth(Path(broker.config.data_directory), broker.config.disk_reserve_bytes, probe_s)
        self.disk.start(broker.disk_threads(broker.loop, threads=1, name="probe"))
        if not broker.replicas.single:
            contact = StoreContact(broker.store, broker.broker_id, broker.incarnation)
            self._sync_load = SyncLoad(broker.syncs)
            self.spawn(contact.keep_alive())
            self.spawn(contact.ask(lambda answers: self.note_store(answers=answers)))
        self._tick()

    async def register(self) -> None:
        """Tell the others who and where this broker is."""
        broker = self._broker
        key = broker_key(broker.broker_id)
        while True:
            held = await broker.store.get(key)
            draining = False
            if held is not None and (known := broker.catalogue.brokers.get(broker.broker_id)) is not None:
                draining = known.draining
            record = BrokerRecord(
                broker.broker_id,
                broker.incarnation,
                address=broker.address,
                http_address=broker.http_address,
                zone=broker.config.zone,
                draining=draining,
                version=__version__,
                addresses=broker.listeners.addresses,
                level=LEVEL_KNOWN,
            )
            revision = 0 if held is None else held.revision
            if (await broker.store.swap(expect={key: revision}, put={key: encode(record)})).succeeded:
                return

    def note_store(self, *, answers: bool) -> None:
        """C29: whether the coordination store can be reached."""
        self.store_answers = answers
        self.machine.membership.store_answers(answers, self.now_us())

    def disk_is_full(self) -> None:
        """An append found no room: the others should know soon (C31)."""
        if self.disk is not None:
            self.disk.found_full()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Work that ends with this broker, and is told when it fails."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None or self.closed:
            return
        traceback = None if isinstance(error, CoordinationUnavailable) else error  # that is no fault of ours
        logger.error("the cluster's work failed: %s", error, exc_info=traceback)

    # --- time -----------------------------------------------------------------------------------

    def _tick(self) -> None:
        if self.closed:
            return
        now_us = self.now_us()
        self.machine.membership.load = len(self._broker.sessions)
        self.machine.membership.busy = self._sync_load is not None and self._sync_load.tick()
        if self.disk is not None:
            writes = self.disk.tick()
            if not self._broker.replicas.single:  # nobody could take over from it
                self.machine.membership.disk_writes(writes, now_us)
        if self.peers.names or self.machine.controller is None:  # alone, one has nothing to do as one's own controller
            self.do(self.machine.tick(now_us))
            self._watch_views(now_us)
            self._active.choose()
            self.restored.tell_behind(self.machine.controller, self._broker.catalogue.by_id)
        if now_us - self._pinged_us > limits.HEARTBEAT_S * 1_000_000:
            self._pinged_us = now_us
            self.peers.ping()
            self.hearsay.check_rumours()
        self._broker.replicas.tick()
        self._loop.call_later(limits.PEER_HEARTBEAT_S, self._tick)

    def _watch_views(self, now_us: int) -> None:
        membership = self.machine.membership
        heard = membership.is_confirmed(now_us)
        if not heard:
            self._fresh = False
        elif not self._fresh and not self._refreshing:
            self._refreshing = True
            self.spawn(self._refresh())
        self._set_confirmed(heard and self._fresh)
        for name in self.peers.names:
            view = membership.view(name, now_us)
            if view != self._views.get(name):
                logger.log(logging.INFO if view == "heard" else logging.WARNING, "broker %s: %s", name, view)
                self._views[name] = view
                self.routes.brokers_changed()
            if view != "heard":
                self._broker.replicas.predecessor_lost(name)
            if view == "silent" and now_us - self._restarted_us.get(name, 0) > _RESTART_US:
                self._restarted_us[name] = now_us
                self.peers.restart(name)
        unheard = membership.unreached(now_us)
        if unheard - self.unheard:
            self._broker.replicas.wake_before(unheard - self.unheard)
        self.unheard = unheard

    def _set_confirmed(self, confirmed: bool) -> None:
        """C6, C25: cut off from everyone who could replace it, a broker takes nothing and serves nobody."""
        if confirmed == self.confirmed:
            return
        self.confirmed = confirmed
        if confirmed:
            logger.info("this broker is heard by the cluster again")
            return
        logger.warning("this broker hears neither the controller nor a majority: it takes no messages")
        for partition in self._broker.replicas.partitions.values():
            partition.end_streams_for_now()
        for session in list(self._broker.sessions):
            if session.watches_routes:
                session.close()  # its client finds another home

    async def _refresh(self) -> None:
        """Who was cut off reads what it missed before it serves anyone; or the controller tells it (C25)."""
        try:
            await self.look_again()
        except StentorError as error:
            logger.info("what was missed could not be read yet: %s", error)
            await asyncio.sleep(limits.PEER_HEARTBEAT_S)
        else:
            self._fresh = True
        finally:
            self._refreshing = False

    @property
    def active(self) -> str:
        return self._broker.catalogue.active

    @property
    def machine(self) -> ClusterMember:
        if self.member is None:
            raise NotReady("This broker has not joined its cluster yet.", hint="Try again in a moment.")
        return self.member

    @property
    def awake_since_us(self) -> int:
        """Since when this broker has not stood still itself (C15)."""
        return self.machine.membership.awake_since_us

    def view(self, name: str) -> str:
        """How this broker sees another one."""
        return self.machine.membership.view(name, self.now_us())

    def alive(self) -> dict[str, int]:
        """Brokers that are there, with their incarnations."""
        membership, now_us = self.machine.membership, self.now_us()
        return {
            record.id: membership.incarnation_of(record.id) or record.incarnation
            for record in self._broker.catalogue.brokers.values()
            if membership.view(record.id, now_us) == "heard"
        }

    # --- peers ----------------------------------------------------------------------------------

    def _peer_connected(self, name: str) -> None:
        if self.peers.is_connected(name):
            self._broker.replicas.peer_connected(name)
            if name == self.machine.controller_broker:
                self.reporting.soon()

    def peer_arrived(self, name: str) -> None:
        """Another broker dialled this one."""
        self._broker.replicas.peer_connected(name)

    def _peer_refused(self, name: str) -> None:
        self.do(self.machine.refused(name, self.now_us()))

    def heard(self, sender: str, body: memoryview) -> None:
        """Control messages of another broker."""
        for message in peer.decode(body):
            if not self.senders.may_say(sender, message):
                continue
            now_us = self.now_us()
            match message:
                case Heartbeat():
                    self.do(self.machine.heard(message, now_us))
                case peer.ForPartition(pass_on=True) | peer.Reports(pass_on=True) if self.machine.controller is None:
                    self.peers.send(self.machine.controller_broker, passed_on(message, sender))
                case peer.ForPartition(topic_id, partition, about):
                    self._heard_about((topic_id, partition), sender, about)
                case peer.Pushed(records, complete):
                    said = {(t, p): HeldRecord(record, revision) for t, p, record, revision in records}
                    self._heard_records(self.hearsay.believed(said), confirmed=False)
                    self._fresh = self._fresh or complete
                case peer.Reports():
                    self.heard_reports(message)
                case peer.ReportAgain() if sender == self.machine.controller_broker:
                    self.reporting.everything()
                case peer.TopicsChanged():
                    self._topics_changed(message)

    def _topics_changed(self, changed: peer.TopicsChanged) -> None:
        if changed.name:
            self.spawn(self.hearsay.learn_topic(changed.name, changed.topic_id))
        self._look.soon(changed.revision)

    def _heard_about(self, key: Key, sender: str, message: PartitionMessage) -> None:
        if isinstance(message, JoinerReady | Complaint):
            self._note_member(key, message)
            return
        if isinstance(message, Adopt):
            believed = self.hearsay.believed({key: HeldRecord(message.record, message.revision)})
            self._heard_records(believed, confirmed=False)
            if not believed:
                return
        if (partition := self._broker.replicas.partitions.get(key)) is not None:
            partition.step(Received(sender, message))

    def replicate(self, sender: str, body: memoryview, session: Session) -> None:
        """Batches on their way down a chain."""
        topic_id, index, epoch, attempt, previous, base, durable, quorum = peer.REPLICATE.unpack_from(body)
        partition = self._broker.replicas.partitions.get((topic_id, index))
        if partition is not None:
            offered = Offered(sender, epoch, attempt, previous, base, durable, quorum)
            partition.offered(offered, body[peer.REPLICATE.size :], session)

    def tell(self, to: str, key: Key, message: PartitionMessage) -> None:
        if not isinstance(message, Held | Confirm | Confirmed) or self.peers.knows(to, "confirm"):
            self.peers.tell(to, key, message)
        elif isinstance(message, Confirm):  # an older broker: it is believed to be where it was, as it used to be
            self._loop.call_soon(self._heard_about, key, to, Confirmed(message.epoch, message.nonce, 0, sure=True))

    def report(self, key: Key, message: PartitionMessage) -> None:
        """Tell the controller something about a partition."""
        to, pass_on = self.way_to_controller()
        if to == self._broker.broker_id:
            self._note_member(key, message)
        elif to:
            self.peers.send(to, peer.ForPartition(*key, message, pass_on))

    def way_to_controller(self) -> tuple[str, bool]:
        """Whom to tell, and whether that one must pass it on."""
        to = self.machine.membership.way_to_controller(self.now_us())
        return to, to != self.machine.controller_broker

    def _note_member(self, key: Key, message: PartitionMessage) -> None:
        """What members say within a moment is looked at together: many chains change in one transaction."""
        if not self._member_messages:
            self._loop.call_later(_GATHER_S, self._take_member_messages)
        self._member_messages.append((key, message))

    def _take_member_messages(self) -> None:
        gathered, self._member_messages = self._member_messages, []
        if self.machine.controller is not None and not self.closed:
            for key, message in gathered:
                self.machine.controller.heard_member(key, message)
            self.do(self.machine.plan(self.now_us()))

    def heard_reports(self, said: peer.Reports) -> None:
        """What a broker holds, or what changed of it."""
        found = {(topic_id, partition): report for topic_id, partition, report in said.reports}
        machine, now_us = self.machine, self.now_us()
        if said.partial:
            self.do(machine.heard_changes(said.broker, said.incarnation, found, said.gone, said.number, now_us))
        else:
            self.do(machine.heard_reports(said.broker, said.incarnation, found, now_us, said.number))

    def _ask_reports(self, broker: str) -> None:
        if broker == self._broker.broker_id:
            self.reporting.everything()
        else:
            self.peers.send(broker, peer.ReportAgain())

    def _plan_on(self) -> None:
        self._planning_on = False
        if not self.closed:
            self.do(self.machine.plan(self.now_us()))

    # --- effects --------------------------------------------------------------------------------

    def do(self, wanted: list[effects.ClusterEffect]) -> None:
        """Perform what the cluster machine says."""
        for effect in wanted:
            match effect:
                case effects.Beat(heartbeat):
                    self.peers.send_all(heartbeat)
                case effects.TakeOver(revision):
                    self.spawn(self._controlling.take_over(revision))
                case effects.LoadAll():
                    self.spawn(self._controlling.load())
                case effects.Push(records, complete):
                    self.push(dict(records), complete=complete)
                case effects.ReportReplicas():
                    self.reporting.soon()
                case effects.AskReports(broker):
                    self._ask_reports(broker)
                case effects.PlanOn() if not self._planning_on:
                    self._planning_on = True
                    self._loop.call_soon(self._plan_on)
                case Propose():
                    self.spawn(self._controlling.propose(effect))

    def push(self, records: dict[Key, HeldRecord], *, complete: bool = False) -> None:
        """Everyone hears of new records at once; the watch is for who missed it."""
        if records:
            rows = [(*key, held.record, held.revision) for key, held in records.items()]
            for start in range(0, len(rows), limits.PUSHED_RECORDS_MAX):
                part = rows[start : start + limits.PUSHED_RECORDS_MAX]
                last = start + limits.PUSHED_RECORDS_MAX >= len(rows)
                self.peers.send_all(peer.Pushed(part, complete and last))
            self._heard_records(records, confirmed=True)

    # --- the store ------------------------------------------------------------------------------

    async def _watch(self, revision: int) -> None:
        async for event in self._broker.store.watch("", revision):
            if not self.restored.follows(revision, event.revision):
                continue
            revision, news = event.revision, News()
            if isinstance(event, Changed):
                for entry in event.put:
                    self._broker.catalogue.put(entry, news)
                    self._note_liveness(entry.key, alive=True)
                for key in event.deleted:
                    self._broker.catalogue.delete(key, event.revision, news)
                    self._note_liveness(key, alive=False)
            else:
                self._broker.catalogue.replace(event.entries, event.revision, news)
                self._note_all_liveness([entry.key for entry in event.entries])
            self.take_news(news)
            self.hearsay.settle()

    def _note_liveness(self, key: str, *, alive: bool) -> None:
        kind, _, name = key.partition("/")
        if kind == "live":
            self.machine.membership.liveness(name, alive=alive)

    async def look_again(self) -> None:
        """Read everything from the store."""
        before = self.restored.revision
        found = await self._broker.store.range("")
        if not self.restored.follows(before, found.revision):
            return
        news = News()
        self._broker.catalogue.replace(found.entries, found.revision, news)
        self.take_news(news)
        self.hearsay.settle()
        self._note_all_liveness([entry.key for entry in found.entries])

    def _note_all_liveness(self, keys: list[str]) -> None:
        """Liveness keys that went while nobody watched; a broker on its own has none."""
        if not self._broker.replicas.single:
            live = {key.removeprefix("live/") for key in keys if key.startswith("live/")}
            for name in self._broker.catalogue.brokers:
                self.machine.membership.liveness(name, alive=name in live)

    def _heard_records(self, records: dict[Key, HeldRecord], *, confirmed: bool) -> None:
        news = News()
        for key, held in records.items():
            self._broker.catalogue.put_chain(key, held, news, confirmed=confirmed)
        self.take_news(news)

    def take_news(self, news: News) -> None:
        """What the store says goes to whom it concerns."""
        broker = self._broker
        self.restored.tell_vanished(news.vanished)
        if news.controller is not None:
            self.do(self.machine.controller_is(*news.controller))
        if news.brokers:
            self._take_brokers()
        if news.brokers or news.identity:
            broker.trust.take()
        if news.active and self.machine.controller is not None:
            self.machine.controller.set_active(broker.catalogue.active)
        for topic_id, topic in news.topics.items():
            self._take_topic(topic_id, topic)
        for key, held in news.chains.items():
            self.machine.heard_record(key, held)
            topic = broker.catalogue.by_id.get(key[0])
            if held is not None and topic is not None:
                broker.replicas.configure(topic, key, held)
                self.routes.topic_changed(key[0], topic)

    def _take_brokers(self) -> None:
        broker = self._broker
        addresses = {b.id: b.address for b in broker.catalogue.brokers.values() if b.id != broker.broker_id}
        self.peers.set(addresses)
        self.routes.brokers_changed()
        self.do(self.machine.registered(broker.catalogue.brokers, self.now_us()))

    def _take_topic(self, topic_id: int, topic: HeldTopic | None) -> None:
        broker = self._broker
        controller = self.machine.controller
        if controller is not None:
            controller.topic(topic_id, None if topic is None else topic.plan)
        self.routes.topic_changed(topic_id, topic)
        if topic is None:
            self.spawn(broker.drop_topic(topic_id))
            return
        broker.apply_settings(topic)
        for key in topic.keys:
            if (held := broker.catalogue.chains.get(key)) is not None:
                broker.replicas.configure(topic, key, held)

    # --- topics changed here --------------------------------------------------------------------

    async def topic_made(self, topic: HeldTopic, held: dict[Key, HeldRecord]) -> None:
        """This broker made a topic: everyone hears of it now."""
        self.topic_changed(topic, held)
        await self._broker.wait_until_active(topic)

    def topic_changed(self, topic: HeldTopic, held: dict[Key, HeldRecord] | None = None) -> None:
        """This broker changed a topic, or made it with these chains."""
        news = News()
        self._broker.catalogue.put_topic(topic, news)
        for key, one in (held or {}).items():
            self._broker.catalogue.put_chain(key, one, news, confirmed=True)
        self.take_news(news)
        self.peers.send_all(peer.TopicsChanged(topic.revision, topic.record.name, topic.record.id))

    async def topic_deleted(self, topic: HeldTopic) -> None:
        news = News()
        catalogue = self._broker.catalogue
        catalogue.drop_topic(topic)
        self.routes.topic_changed(topic.record.id, None)
        for key in topic.keys:
            catalogue.drop_chain(key)
            news.chains[key] = None
        if self.machine.controller is not None:
            self.machine.controller.topic(topic.record.id, None)
        self.take_news(news)
        self.routes.announce()
        for key in topic.keys:
            await self._broker.replicas.drop(key, deleted_error(topic.record.name))
        self.peers.send_all(peer.TopicsChanged(0))

    # --- the end --------------------------------------------------------------------------------

    async def close(self) -> None:
        self.closed = True
        if self.disk is not None:
            self.disk.close()
        self.peers.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def statistics(self) -> dict[str, Any]:
        if self.member is None:
            return {}
        found: dict[str, Any] = {
            **self.member.membership.statistics(self.now_us()),
            "confirmed": self.confirmed,
            "takeovers": self.member.takeovers,
            "resignations": self.member.resignations,
            "store_restored": self.restored.noticed,
            "feature_level": self._broker.trust.level,
        }
        if self.member.controller is not None:
            found["chains"] = self.member.controller.statistics()
        return found
