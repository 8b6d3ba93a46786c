"""The cluster's secret and feature level, as this broker knows them: from the store, else from its own file.

The secret is made by compare-and-swap by whoever starts a cluster, or the first broker of a cluster that has none yet.
It is kept in the store and, for a time without the store, in a file that only the broker's user may read.

    store and file agree           the usual case
    the store's has moved on       the secret was rotated while this broker was down: the store's counts
    the store was restored (C27)   the store's counts; the file's is valid beside it until the next start, because
                                   brokers that were not restarted yet have it
    the store has none             it was restored from before there was one: the file's is put there

The feature level says what all brokers of the cluster know (C27). From PEERS_PROVE on, a broker that does not prove
who it is gets no hearing (S6). It is raised once every registered broker knows it, and never lowered.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from typing import TYPE_CHECKING, Any, Final

from stentor import limits
from stentor.errors import CorruptData, InvalidArgument, NotReady, PeerRefused, StentorError
from stentor.security import cluster_secret
from stentor.security.cluster_secret import ClusterSecret, Kept, decode_kept, decode_secret, first_secret
from stentor.security.proof import new_secret
from stentor.storage.files import FileKind, atomic_write, seal, unseal

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from pathlib import Path

    from stentor.broker.background import Background
    from stentor.broker.catalogue import News
    from stentor.broker.cluster.store_follower import FollowedStore
    from stentor.broker.environment import BrokerIdentity
    from stentor.ports import CoordinationStore

logger = logging.getLogger(__name__)

SECRET_KEY: Final = "identity/secret"  # noqa: S105 - where it is, not what it is
LEVEL_KEY: Final = "identity/level"
TOKENS_KEY: Final = "identity/tokens"
"""A key that never changes, from which tokens are made that any broker must give out again."""

PEERS_PROVE: Final = 1
"""The feature level from which on brokers must prove who they are."""

CURSORS: Final = 2
"""The feature level from which on named cursors are kept in an internal topic, and not in the store."""

TABLES: Final = 2
"""The feature level from which on a topic may be a table."""

EXPIRY: Final = 3
"""The feature level from which on keys of tables may expire."""

COMPACTION: Final = 3
"""The feature level from which on logs are compacted: brokers know sparse batches and control batches."""

GROUPS: Final = 3
"""The feature level from which on consumer groups are kept beside the cursors."""

REQUESTS: Final = 4
"""The feature level from which on clients may answer requests: brokers tell each other where responders are."""

QUEUES: Final = 4
"""The feature level from which on a topic may be a queue."""

MEMORY: Final = 4
"""The feature level from which on a topic may be kept in memory: brokers know that a copy ends with its process."""

TRANSACTIONS: Final = 5
"""The feature level from which on members of groups may send out what they commit by."""

HOLDERS: Final = 6
"""The feature level from which on logs keep the hash of a holder's secret beside what it holds (C36), and from which on
other records may be written that came with it."""

LEVEL_KNOWN: Final = max(CURSORS, TABLES, EXPIRY, COMPACTION, GROUPS, REQUESTS, QUEUES, MEMORY, TRANSACTIONS, HOLDERS)
"""The highest feature level that this version knows."""


class Trust:
    """What proves to this broker that another one belongs to the cluster."""

    def __init__(
        self,
        identity: BrokerIdentity,
        *,
        followed: FollowedStore,
        background: Background,
        level_max: int | None = None,
    ) -> None:
        self.level = 0
        self.level_known = LEVEL_KNOWN if level_max is None else min(level_max, LEVEL_KNOWN)
        """The highest feature level that this broker takes part in."""
        self.on_change: list[Callable[[], None]] = []  # whoever came in by what no longer counts comes in again
        self._identity = identity
        self._store, self._catalogue, self._rollback = followed.store, followed.catalogue, followed.rollback
        self._background = background
        self._file: Path | None = None
        self._secret: ClusterSecret | None = None
        self._restored: tuple[bytes, ...] = ()  # valid too, after the store was restored
        self._taken: tuple[bytes | None, bytes | None] = (None, None)  # from the store, as it is there
        self._raising = False
        self._told: set[str] = set()

    @property
    def secrets(self) -> tuple[bytes, ...]:
        """All that prove something, the newest first; none before the store or the file has told one."""
        return () if self._secret is None else (*self._secret.valid, *self._restored)

    @property
    def all_prove(self) -> bool:
        """Whether every broker must prove who it is."""
        return self.level >= PEERS_PROVE

    @property
    def tables(self) -> bool:
        """Whether every broker knows what a table is (C27)."""
        return self._identity.alone or self.level >= TABLES

    @property
    def expiry(self) -> bool:
        """Whether every broker deletes keys whose time is over (C27)."""
        return self._identity.alone or self.level >= EXPIRY

    @property
    def compaction(self) -> bool:
        """Whether every broker knows what a horizon and a sparse batch are (C27)."""
        return self._identity.alone or self.level >= COMPACTION

    @property
    def queues(self) -> bool:
        """Whether every broker knows what a queue is (C27)."""
        return self._identity.alone or self.level >= QUEUES

    @property
    def holders(self) -> bool:
        """Whether every broker knows records that name a holder's secret, and what came with them (C27, C36)."""
        return self._identity.alone or self.level >= HOLDERS

    @property
    def memory(self) -> bool:
        """Whether every broker knows what a memory topic is (C27)."""
        return self._identity.alone or self.level >= MEMORY

    @property
    def makes_tokens(self) -> bool:
        """Whether this broker knows the key that tokens are made from."""
        return bool(self._catalogue.identity.get("tokens"))

    def token(self, *about: str) -> bytes:
        """Return what only those know to whom a broker of this cluster gives it; the same from each, at any time.

        Empty if this broker does not know the key yet.
        """
        key = self._catalogue.identity.get("tokens", b"")
        text = b"".join(len(part).to_bytes(4, "little") + part for part in (each.encode() for each in about))
        return hmac.digest(key, text, "sha256") if key else b""

    def must_prove(self, name: str) -> bool:
        """Whether this one must: it says in the store that it can, or all must."""
        record = self._catalogue.brokers.get(name)
        return self.all_prove or (record is not None and record.level >= PEERS_PROVE)

    def accepts(self, name: str, proven_by: bytes) -> bool:
        """Whether a connection that was proven by this secret (empty: by none) still counts."""
        return proven_by in self.secrets or (not proven_by and not self.must_prove(name))

    def tell_unproven(self, name: str) -> None:
        """A broker of an older version is taken at its word; said once each."""
        if name not in self._told:
            self._told.add(name)
            logger.warning("broker %s cannot prove who it is; this is accepted until all brokers are upgraded", name)

    # --- the start ------------------------------------------------------------------------------

    def open(self, file: Path) -> None:
        """What this broker knew last: all there is while the store is away."""
        self._file = file
        try:
            kept = decode_kept(unseal(FileKind.SECRET, file.read_bytes(), what=str(file)))
        except FileNotFoundError:
            return
        except (OSError, StentorError) as error:
            logger.warning(
                "cannot read the cluster's secret from %s; the one in the coordination store is used: %s", file, error
            )
            return
        self._secret, self.level = kept.secret, kept.level

    def founding(self) -> dict[str, bytes]:
        """What a new cluster begins with, beside its id."""
        if self._identity.alone:
            return {}  # it takes no other brokers
        secret = self._secret or first_secret()
        return {SECRET_KEY: cluster_secret.encode(secret), LEVEL_KEY: str(self.level_known).encode()}

    async def make_tokens_key(self) -> None:
        """Put the key of tokens into the store, which answers, if an earlier version has not."""
        while await self._store.get(TOKENS_KEY) is None:
            await self._store.swap(expect={TOKENS_KEY: 0}, put={TOKENS_KEY: new_secret()})

    async def learn(self) -> None:
        """From the store, which answers; or put there what it lacks."""
        store = self._store
        while (found := await store.get(SECRET_KEY)) is None:
            await store.swap(
                expect={SECRET_KEY: 0}, put={SECRET_KEY: cluster_secret.encode(self._secret or first_secret())}
            )
        level = await store.get(LEVEL_KEY)
        secret = decode_secret(found.value)
        if self._secret is not None and self._secret.current not in secret.valid:
            restored = self._rollback.accepted
            self._restored = self._secret.valid if restored else ()
            logger.warning(
                "the cluster's secret in the coordination store differs from the one in %s: the store's is used%s",
                self._file,
                ", and the file's too until the next start" if restored else "",
            )
        self._secret = secret
        self.level = max(self.level, 0 if level is None else _number(level.value))
        if self.level_known < self.level <= LEVEL_KNOWN:
            logger.warning("the cluster's feature level is %d already; feature_level_max has no effect", self.level)
            self.level_known = self.level
        await asyncio.to_thread(self._keep)

    def _keep(self) -> None:
        """In a thread: the file is for a time without the store, so a disk that is full now stops nothing."""
        if self._file is None or self._secret is None:
            return
        kept = cluster_secret.encode(Kept(self._secret, self.level))
        try:
            atomic_write(self._file, seal(FileKind.SECRET, kept))
        except StentorError as error:
            logger.warning("could not write the cluster's secret to disk: %s", error)

    # --- news -----------------------------------------------------------------------------------

    def take_news(self, news: News, register: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """The store has news of the cluster's secret, its level or its brokers."""
        if not news.brokers and not news.identity:
            return
        identity = self._catalogue.identity
        found = identity.get("secret"), identity.get("level")
        if found != self._taken:
            self._taken = found
            self._change(*found)
        if not self.all_prove:
            self._check_connections()  # a broker that was upgraded proves itself from now on
        mine = self._catalogue.brokers.get(self._identity.broker_id)
        if mine is not None and mine.level < self.level_known and not self._rollback.noticed:
            self._background.spawn(register())  # an older version changed the record, and left that out
        if self._level_due() > _number(identity.get("level", b"")) and not self._raising:
            self._raising = True
            self._background.spawn(self._raise_level())

    def _change(self, value: bytes | None, level: bytes | None) -> None:
        before = self._secret, self.level
        try:
            secret = self._secret if value is None else decode_secret(value)
        except CorruptData as error:
            logger.error("%s The secret that this broker knew before stays in use.", error)  # noqa: TRY400 - no traceback: it has the bytes
            secret = self._secret
        if secret != self._secret:
            logger.info("the cluster's secret was rotated")
            self._secret, self._restored = secret, ()
        if level is not None and _number(level) > self.level:
            self.level = _number(level)
            logger.info("the cluster's feature level is %d", self.level)
        if (self._secret, self.level) != before:
            self._background.spawn(asyncio.to_thread(self._keep))
            self._check_connections()

    def _check_connections(self) -> None:
        for check in self.on_change:
            check()

    def _level_due(self) -> int:
        """What the store's level should be: what every registered broker knows, and never less than it was."""
        known = min((record.level for record in self._catalogue.brokers.values()), default=0)
        return max(self.level, min(known, self.level_known))

    async def _raise_level(self) -> None:
        """C27: whoever notices that it is due does it; the swap lets one of them."""
        store = self._store
        try:
            while not self._rollback.noticed:
                try:
                    found, due = await store.get(LEVEL_KEY), self._level_due()
                    held = 0 if found is None else _number(found.value)
                    if held >= due:
                        self._change(None, str(held).encode())
                        return
                    expect = {LEVEL_KEY: 0 if found is None else found.revision}
                    await store.swap(expect=expect, put={LEVEL_KEY: str(due).encode()})
                except StentorError as error:
                    logger.info("could not raise the cluster's feature level yet: %s", error)
                    await asyncio.sleep(limits.PEER_LOOK_S)
        finally:
            self._raising = False


def refused(message: str) -> PeerRefused:
    """Why a broker is not let in."""
    return PeerRefused(
        message,
        hint="Only brokers of this cluster may speak as one: check its coordination store, its data directory and its"
        " version.",
    )


def _number(value: bytes) -> int:
    return int(value) if value.isdigit() else 0


async def rotate(store: CoordinationStore, now_us: int) -> None:
    """A new secret for the cluster of this store; the one in use stays valid until the next rotation."""
    found = await store.get(SECRET_KEY)
    if found is None:
        raise InvalidArgument(
            "This coordination store has no cluster whose brokers have a secret.",
            hint="Check the address and the prefix; a broker of this version makes the secret when it starts.",
        )
    secret = decode_secret(found.value).rotated(now_us)
    swap = await store.swap(expect={SECRET_KEY: found.revision}, put={SECRET_KEY: cluster_secret.encode(secret)})
    if not swap.succeeded:
        raise NotReady("Somebody else rotated the secret at the same moment.", hint="Nothing more is needed.")
