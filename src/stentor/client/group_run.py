"""`group.run`: what it takes, checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from stentor.client.convert import as_headers
from stentor.client.group_work import GroupRun, dead_letter, name_message, raise_it, skip_it
from stentor.client.workers_pool import Interrupted
from stentor.client.workers_run import check_handler, make_pool, mode_for
from stentor.client.workers_source import log_failure
from stentor.client.workers_terms import WorkTerms
from stentor.core.names import check_topic_name
from stentor.errors import InvalidArgument
from stentor.wire.batch import trim_headers

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor.client.group_core import GroupCore
    from stentor.client.group_work import OnFailed
    from stentor.client.message import Message
    from stentor.client.options import OnFailure
    from stentor.client.workers_plan import OrderedBy
    from stentor.client.workers_pool import WorkerPool
    from stentor.client.workers_terms import WorkMode


class RunOptions(TypedDict):
    """What `run` takes besides the handler."""

    workers: int
    mode: WorkMode | None
    ordered_by: OrderedBy | None
    batch: int | None
    on_error: OnFailure
    dead_letters: str | None
    attempts: int
    time_limit: float | None
    finish_within: float


class GroupStatistics(TypedDict):
    """What a member of a group counts."""

    done: int  # messages that `run` has finished
    failed: int  # those whose handler failed
    in_work: int  # those that workers have
    waiting: int  # those that wait for a worker
    workers_died: int  # worker processes that were replaced
    lag: int  # committed messages of all partitions that are not finished


def make_run(
    core: GroupCore, handler: Callable[..., Any] | str, options: RunOptions, *, asynchronous: bool
) -> tuple[GroupRun, WorkerPool]:
    """A run that can be begun; InvalidArgument if it cannot be."""
    dead, on_error = options["dead_letters"], options["on_error"]
    if on_error not in ("raise", "skip"):
        raise InvalidArgument(f"on_error={on_error!r} is unknown.", hint="Use 'raise' or 'skip'.")
    check_handler(handler)
    time_limit = core.tie.time_limit_s if options["time_limit"] is None else options["time_limit"]
    terms = WorkTerms(
        workers=options["workers"],
        mode=mode_for(handler, options["mode"], asynchronous=asynchronous),
        ordered_by=options["ordered_by"],
        batch=options["batch"],
        attempts=options["attempts"],
        time_limit_s=time_limit,
        finish_s=options["finish_within"],
        fatal=on_error == "raise" and dead is None,
    )
    terms.check()
    if dead is not None:
        check_topic_name(dead)
    here = terms.mode == "thread" and terms.workers == 1 and not asynchronous
    pool = make_pool(handler, terms, asynchronous=asynchronous, here=here, tracing=core.core.tracing, group=core.name)
    return GroupRun(core, pool, terms, _on_failed(core, on_error, dead)), pool


def _on_failed(core: GroupCore, on_error: OnFailure, dead_letters: str | None) -> OnFailed:
    if dead_letters is None:
        return raise_it if on_error == "raise" else skip_it

    async def bury(message: Message, error: Exception) -> None:
        if isinstance(error, Interrupted):
            raise error
        log_failure(name_message(message), error)
        headers = [*message.headers, *(as_headers(dead_letter(message, error)) or ())]
        trim_headers(headers)
        assert core.core.client is not None
        await core.core.client.publish(dead_letters, message.value, key=message.key, headers=headers)

    return bury
