"""Why a replica does not take a publish or serve a reader, in words (`core.decisions` says when)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stentor.errors import NotHead, NotReady, OffsetOutOfRange, TopicNotFound, UnknownOutcome

if TYPE_CHECKING:
    from stentor.core.records import ChainRecord
    from stentor.errors import SequenceError, StentorError


def failed(why: str) -> StentorError:
    """The log failed."""
    return NotReady(
        f"This partition takes no writes: {why}",
        hint="Reads go on. Mend the disk; a start with --unclean then takes writes again.",
    )


def damaged() -> StentorError:
    """K2: this copy cannot be read any more, others can."""
    return NotReady(
        "This broker's copy of the partition is damaged.",
        hint="Another member has it whole; clients find it by themselves.",
    )


def not_head(head: str, epoch: int, revision: int) -> StentorError:
    """Someone else takes this partition's messages (C26)."""
    return NotHead(
        f"The head of this partition is {head}." if head else "This partition has no head at the moment.",
        hint="Publish there; clients find the way by themselves.",
        head=head,
        epoch=epoch,
        revision=revision,
    )


def offsets_used_up() -> StentorError:
    """The controller has not set more offsets aside in time."""
    return NotReady(
        "The offsets that were set aside for this partition are used up.",
        hint="More are set aside as soon as the coordination store answers; clients try again by themselves.",
    )


def begun_anew(name: str, *, start: int, begins: int, log_start: int, end: int) -> OffsetOutOfRange:
    """What a reader of a memory topic is told whose messages were lost with the processes that held them."""
    return OffsetOutOfRange(
        f"{name} is kept in memory and was lost with its brokers. It began anew at {begins}; {start} was asked for.",
        hint="Start at 'earliest' or 'latest'. What was before is gone.",
        object=name,
        start=log_start,
        end=end,
        begun_anew=True,
    )


def lost_with_memory() -> StentorError:
    """C18: a batch that was sent before a memory topic was lost; readers may have seen it then."""
    return UnknownOutcome(
        "This batch was sent before its topic was lost with the brokers that held it in memory.",
        hint="Readers may have seen it. Publish it again only if they may see it twice.",
    )


def deleted(topic: str) -> TopicNotFound:
    """What readers of a deleted topic are told."""
    return TopicNotFound(f"Topic {topic} was deleted.", object=topic)


def cut_off() -> StentorError:
    """C6, C25: nobody who could have replaced this broker is heard, so it takes nothing and serves nobody."""
    return NotReady(
        "This broker is cut off: it hears neither the controller nor a majority of its cluster.",
        hint="Another broker takes its place; clients find it by themselves.",
    )


def without_store(what: str = "Committed messages can be read") -> StentorError:
    """C27: what a broker says that started without its store."""
    return NotReady(
        f"This broker started while its coordination store was away. {what}; all else waits for the store.",
        hint="Bring etcd back, or ask another broker.",
    )


def unconfirmed(successor: str) -> StentorError:
    """C6: a head that its successor does not confirm may have been replaced."""
    return NotReady(f"The head does not hear the next member of the chain, {successor}.", hint="Try again in a moment.")


def elsewhere(name: str, record: ChainRecord, revision: int) -> StentorError:
    """Other brokers have it."""
    return NotHead(
        f"{name} is on {', '.join(member.broker for member in record.chain)}, not on this broker.",
        hint="Clients find the way by themselves.",
        head=record.chain[0].broker,
        epoch=record.epoch,
        revision=revision,
    )


def older_store(name: str) -> StentorError:
    """C27: the store was restored from an older state, and nobody knows by it which copy leads."""
    return NotReady(
        f"{name} waits for an operator: the coordination store has an older chain than the copies of the partition.",
        hint="`stentor topic recover` lets the furthest copy lead; docs/cluster.md, 'Backup and restore', has more.",
    )


def not_active() -> StentorError:
    """The epoch is not active yet (C4)."""
    return NotReady("The chain of this partition is being put together.", hint="Try again in a moment.")


def too_short(record: ChainRecord) -> StentorError:
    """Too few members are left (C8)."""
    return NotReady(
        f"This partition has {len(record.chain)} of {record.factor} replicas and needs"
        f" {record.min_replicas} to take messages.",
        hint="Reads go on. It takes messages again when another replica is back.",
    )


def no_quorum(record: ChainRecord) -> StentorError:
    """The chain is shorter than a majority of the factor (C7)."""
    return NotReady(
        f"ack=quorum needs {record.quorum} replicas; there are {len(record.chain)}.",
        hint="Wait for another replica, or publish with ack=all.",
    )


def deposed() -> StentorError:
    """C6: never "failed": the new head may have it."""
    error = UnknownOutcome(
        "Another broker became the head of this partition before the batch was acknowledged.",
        hint="Send it again to the new head; it is recognised if it is there already.",
    )
    error.retriable = True
    return error


def unknown(why: str) -> StentorError:
    """The log failed before the batch was acknowledged."""
    return UnknownOutcome(
        f"Whether the batch is in the log is not known: {why}",
        hint="Read the partition to find out; publishing it again may double it.",
    )


def not_found(error: SequenceError) -> StentorError:
    """C32: only a batch that is in the log counts as written."""
    return UnknownOutcome(
        f"{error.message} It was not found in the log: whether it was ever written is not known.",
        hint="Read the partition to find out. If somebody else sends under this identity, choose another one.",
        reason=error.detail["reason"],
    )


def busy_searching() -> StentorError:
    """Too many wait for the same."""
    return NotReady("Too many old batches are being looked for in this partition.", hint="Try again in a moment.")


def being_upgraded(what: str, name: str = "", *, made: bool = False) -> NotReady:
    """Not every broker of the cluster knows something yet (C27)."""
    return NotReady(
        f"The cluster is being upgraded; {what} cannot be {'made' if made else 'used'} until every broker knows them.",
        hint="Upgrade all brokers, then try again.",
        object=name,
    )
