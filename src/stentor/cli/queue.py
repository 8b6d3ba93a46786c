"""`stentor queue`: create, list, describe, look into, redrive and purge work queues."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from stentor.cli import options
from stentor.cli.output import print_json, print_table
from stentor.cli.topic import given
from stentor.core.names import check_topic_name
from stentor.errors import InvalidArgument

if TYPE_CHECKING:
    from stentor import Client, QueueInfo

app = options.make_app(invoke_without_command=True, help="Create, list, describe, redrive and purge work queues.")

Name = Annotated[str, typer.Argument(metavar="QUEUE", help="Name of the queue, such as jobs.")]


@app.callback()
def queue(context: typer.Context) -> None:
    """Print help when no command was given."""
    if context.invoked_subcommand is None:
        print(context.get_help())


MaxAttempts = Annotated[int | None, typer.Option(metavar="N", min=1, help="Attempts after which a job is dead.")]
Lease = Annotated[
    int | None, typer.Option(metavar="SECONDS", min=1, help="A consumer that is silent for so long has lost its jobs.")
]
RetryDelay = Annotated[
    int | None,
    typer.Option("--retry-delay-ms", metavar="MS", min=0, help="Pause after a first failure; each further doubles it."),
]
DeadLetterTopic = Annotated[
    str | None, typer.Option(metavar="TOPIC", help="Where dead jobs go, instead of QUEUE.dead.")
]


@app.command(context_settings=options.CONTEXT_SETTINGS)
def create(
    name: Name,
    partitions: Annotated[int | None, typer.Option(metavar="N", min=1, help="Number of partitions.")] = None,
    replicas: Annotated[int | None, typer.Option(metavar="N", min=0, help="Number of copies of each.")] = None,
    by_key: Annotated[
        bool, typer.Option("--ordered-by-key", help="Never let two jobs of one key be in work at once.")
    ] = False,
    max_attempts: MaxAttempts = None,
    lease: Lease = None,
    retry_delay_ms: RetryDelay = None,
    dead_letter_topic: DeadLetterTopic = None,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """Create a queue. `stentor topic create --kind queue` has more options.

    \b
    Examples:
      stentor queue create jobs
      stentor queue create payments --ordered-by-key --max-attempts 10
    """
    check_topic_name(name)
    settings = given(partitions=partitions, replicas=replicas, ordered_by="key" if by_key else None)
    settings |= _attempts(max_attempts, lease, retry_delay_ms, dead_letter_topic)
    with options.connect(url, timeout, "queue create") as client:
        client.create_topic(name, kind="queue", **settings)
    print(f"created queue {name}")


@app.command(context_settings=options.CONTEXT_SETTINGS)
def alter(
    name: Name,
    max_attempts: MaxAttempts = None,
    lease: Lease = None,
    retry_delay_ms: RetryDelay = None,
    dead_letter_topic: DeadLetterTopic = None,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """Change what a queue does with its jobs. `stentor topic alter` changes the rest.

    \b
    Examples:
      stentor queue alter jobs --max-attempts 10
      stentor queue alter jobs --lease 120
    """
    check_topic_name(name)
    changes = _attempts(max_attempts, lease, retry_delay_ms, dead_letter_topic)
    if not changes:
        raise InvalidArgument("No setting was named.", hint="Name a setting to change, such as --max-attempts 10.")
    with options.connect(url, timeout, "queue alter") as client:
        client.describe_queue(name)
        client.alter_topic(name, **changes)
    print(f"altered queue {name}")


def _attempts(
    max_attempts: int | None, lease: int | None, retry_delay_ms: int | None, dead_letter_topic: str | None
) -> dict[str, Any]:
    return given(
        max_attempts=max_attempts, lease_s=lease, retry_delay_ms=retry_delay_ms, dead_letter_topic=dead_letter_topic
    )


@app.command("list", context_settings=options.CONTEXT_SETTINGS)
def list_queues(
    json: options.Json = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """List the queues with the number of their jobs and consumers.

    \b
    Examples:
      stentor queue list
      stentor queue list --json
    """
    with options.connect(url, timeout, "queue list") as client:
        found = client.queues()
    if json:
        print_json([_told(each) for each in found])
        return
    headings = ("QUEUE", "WAITING", "HELD", "DYING", "FINISHED", "DEAD", "CONSUMERS")
    rows = (
        (
            each.name,
            f"{each.waiting:,}",
            f"{each.held:,}",
            f"{each.dying:,}",
            f"{each.finished:,}",
            f"{each.died:,}",
            max((part.consumers for part in each.partitions), default=0),
        )
        for each in found
    )
    print_table(headings, rows, right=headings[1:])


@app.command(context_settings=options.CONTEXT_SETTINGS)
def describe(
    name: Name,
    json: options.Json = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """Show the settings of a queue, and the jobs of each partition.

    \b
    Examples:
      stentor queue describe jobs
      stentor queue describe jobs --json
    """
    check_topic_name(name)
    with options.connect(url, timeout, "queue describe") as client:
        found = client.describe_queue(name)
    if json:
        print_json(_told(found))
        return
    settings = found.settings
    print(f"queue           {found.name}")
    print(f"waiting         {found.waiting:,}")
    print(f"held            {found.held:,}")
    print(f"dying           {found.dying:,}: dead if the attempt that comes, or is under way, fails")
    print(f"finished        {found.finished:,}")
    print(f"dead            {found.died:,}, in {settings.dead_letter_topic or f'{found.name}.dead'}")
    print(f"attempts        {settings.max_attempts}, after pauses from {settings.retry_delay_ms / 1000:g} s on")
    print(f"lease           {settings.lease_s} s")
    print(f"order           {'by key' if settings.ordered_by else 'none'}")
    print()
    headings = ("PARTITION", "HEAD", "WAITING", "TRIED", "HELD", "DYING", "FINISHED", "DEAD", "CONSUMERS")
    rows = (
        (
            each.partition,
            each.head,
            f"{each.waiting:,}",
            f"{each.tried:,}",
            f"{each.held:,}",
            f"{each.dying:,}",
            f"{each.finished:,}",
            f"{each.died:,}",
            each.consumers,
        )
        for each in found.partitions
    )
    print_table(headings, rows, right=(headings[0], *headings[2:]))


@app.command(context_settings=options.CONTEXT_SETTINGS)
def peek(
    name: Name,
    limit: Annotated[int, typer.Option(help="How many jobs to show, at most.")] = 10,
    json: options.Json = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """Show the first jobs that are not finished, without taking them.

    \b
    Examples:
      stentor queue peek jobs
      stentor queue peek jobs --limit 100 --json
    """
    check_topic_name(name)
    with options.connect(url, timeout, "queue peek") as client, client.queue(_known(client, name)) as found:
        jobs = found.peek(limit)
    told: list[dict[str, Any]] = [
        {
            "partition": job.message.partition,
            "offset": job.message.offset,
            "state": job.state,
            "attempts": job.attempts,
            "priority": job.priority,
            "due": None if job.due is None else job.due.isoformat(),
            "why": job.why,
            "unbegun": job.unbegun,
            "key": _text(job.message.key),
            "value": _text(job.message.value),
        }
        for job in jobs
    ]
    if json:
        print_json(told)
        return
    headings = ("PARTITION", "OFFSET", "STATE", "ATTEMPTS", "PRIORITY", "KEY", "VALUE", "LAST FAILURE")
    rows = (
        (
            job["partition"],
            job["offset"],
            job["state"],
            job["attempts"],
            job["priority"],
            (job["key"] or "-")[:20],
            (job["value"] or "-")[:40],
            (job["why"] or "-")[:40],
        )
        for job in told
    )
    print_table(headings, rows, right=("PARTITION", "OFFSET", "ATTEMPTS", "PRIORITY"))


@app.command(context_settings=options.CONTEXT_SETTINGS)
def redrive(
    name: Name,
    limit: Annotated[int | None, typer.Option(help="How many dead letters to put back, at most.")] = None,
    yes: options.Yes = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """Put dead letters back into their queue, as new jobs, the oldest first.

    \b
    Examples:
      stentor queue redrive jobs
      stentor queue redrive jobs --limit 10 --yes
    """
    check_topic_name(name)
    with options.connect(url, timeout, "queue redrive") as client:
        client.describe_queue(name)
        if not yes:
            options.confirm(f"Put the dead letters of {name} back?", f"Redriving queue {name}")
        with client.queue(name) as found:
            count = found.redrive(limit)
    print(f"put {count:,} jobs back into {name}")


@app.command(context_settings=options.CONTEXT_SETTINGS)
def purge(
    name: Name,
    yes: options.Yes = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """End all jobs of a queue that nobody works on. They are not done, and not dead letters either.

    \b
    Examples:
      stentor queue purge jobs
      stentor queue purge jobs --yes
    """
    check_topic_name(name)
    with options.connect(url, timeout, "queue purge") as client:
        client.describe_queue(name)
        if not yes:
            options.confirm(f"End all waiting jobs of {name}?", f"Purging queue {name}")
        with client.queue(name) as found:
            count = found.purge()
    print(f"ended {count:,} jobs of {name}")


def _known(client: Client, name: str) -> str:
    """The name of a queue that is there: looking at one makes none."""
    return client.describe_queue(name).name


def _told(found: QueueInfo) -> object:
    told = msgspec.to_builtins(found)
    told["settings"] = {
        name: told["settings"].get(name, getattr(found.settings, name))
        for name in ("ordered_by", "max_attempts", "lease_s", "retry_delay_ms", "dead_letter_topic")
    }
    return told


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")
