"""`stentor table`: tables, which hold the latest value of each key."""

from __future__ import annotations

import contextlib
import sys
import time
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from stentor.cli import options
from stentor.cli.failure import EXIT_ERROR, complain
from stentor.cli.quantities import plural, show_bytes, show_seconds
from stentor.core.names import check_topic_name
from stentor.errors import (
    Closed,
    ConditionFailed,
    DeadlineExceeded,
    InvalidArgument,
    LimitExceeded,
    TopicNotFound,
)
from stentor.limits import MESSAGE_VALUE_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stentor import Table, TableChange, TableEntry, TableWatch

app = options.make_app(invoke_without_command=True, help="Create, read, change, watch, dump and load tables.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the table, in dotted parts, such as shop.config.")]
Key = Annotated[
    str, typer.Argument(metavar="KEY", help="A path such as app/limits/rate: words with slashes between them.")
]
Subtree = Annotated[
    str, typer.Option("--subtree", metavar="PATH", help="Only keys below this path, which ends with a slash: app/.")
]
IfVersion = Annotated[
    int | None,
    typer.Option("--if-version", metavar="N", min=0, help="Make the change only if the key is at this version."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing on success.")]

_VALUE_WIDTH: Final = 60
_MISSED_PAUSE_S: Final = 1.0


@app.callback()
def table(context: typer.Context) -> None:
    """Print help when no command was given."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@contextlib.contextmanager
def _open(name: str, url: str | None, timeout: float, command: str) -> Iterator[Table]:
    """A copy of a table; what is wrong with its name is said in words of the command line."""
    check_topic_name(name)
    with options.connect(url, timeout, f"table {command}") as client:
        try:
            opened = client.table(name)
        except TopicNotFound as error:
            hint = f"Make it with `stentor table create {name}`, or look with `stentor topic list`."
            raise TopicNotFound(f"There is no table {name}.", hint=hint, object=name) from error
        except InvalidArgument as error:
            raise InvalidArgument(error.message, hint="`stentor topic list` shows the kinds.", object=name) from error
        with opened:
            yield opened


def _check_key(key: str) -> None:
    from stentor.client.table_keys import check_key

    check_key(key)


def _check_subtree(subtree: str) -> None:
    from stentor.client.table_keys import check_subtree

    check_subtree(subtree)


@app.command(context_settings=options.CONTEXT_SETTINGS)
def create(
    name: Name,
    partitions: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of partitions. Only one keeps the order of all keys.")
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Number of copies, each on its own broker. 0 means three, or fewer if the cluster is smaller.",
        ),
    ] = None,
    min_replicas: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="Refuse changes while fewer copies than this are available. 0 means a majority of the copies.",
        ),
    ] = None,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="Succeed if the table already exists.")] = False,
    json: options.Json = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """Create a table.

    A table is a topic of the kind table. `stentor topic create --kind table` has more options.

    \b
    Examples:
      stentor table create shop.config
      stentor table create shop.stock --partitions 8
    """
    from stentor.cli import topic

    settings = {"kind": "table", **topic.given(partitions=partitions, replicas=replicas, min_replicas=min_replicas)}
    check_topic_name(name)
    topic.check_replicas(replicas, min_replicas)
    with options.connect(url, timeout, "table create") as client:
        made = client.create_topic(name, exist_ok=exist_ok, **settings)
    if made.settings.kind != "table":
        raise InvalidArgument(f"Topic {name} exists, and is no table.", hint="Choose another name.", object=name)
    topic.tell_differences(made, settings)
    topic.print_topic(made, as_json=json)


@app.command(context_settings=options.CONTEXT_SETTINGS)
def get(
    name: Name,
    key: Key,
    raw: Annotated[bool, typer.Option("--raw", help="Print the bytes of the value and nothing else.")] = False,
    json: options.Json = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """Print the value of a key.

    It exits with 1 if the key is not there.

    \b
    Examples:
      stentor table get shop.config app/rate
      stentor table get shop.config app/certificate --raw > certificate.der
      stentor table get shop.config app/rate --json
    """
    from stentor.cli import formats, table_lines
    from stentor.cli.output import LiveOutput, print_json

    _check_key(key)
    with _open(name, url, timeout, "get") as opened:
        entry = opened.entry(key)
    if entry is None:
        complain(f"Table {name} has no key {key}. `stentor table list {name}` shows the keys.")
        raise typer.Exit(EXIT_ERROR)
    if json:
        print_json(table_lines.as_object(entry))
        return
    with LiveOutput() as output:
        output.write(entry.value if raw else formats.as_line(entry.value))


@app.command(context_settings=options.CONTEXT_SETTINGS)
def put(
    name: Name,
    key: Key,
    value: Annotated[
        str | None,
        typer.Argument(metavar="VALUE", help="The value. Without it, all of standard input is the value, as it is."),
    ] = None,
    if_version: IfVersion = None,
    if_absent: Annotated[
        bool, typer.Option("--if-absent", help="Make the change only if the key is not there.")
    ] = False,
    ttl: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Delete the key after this many seconds, unless it is put or touched."),
    ] = None,
    quiet: Quiet = False,
    json: options.Json = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """Set a key, and print its version.

    With --if-version or --if-absent it exits with 1, and changes nothing, if somebody else was faster.

    \b
    Examples:
      stentor table put shop.config app/rate 100
      stentor table put shop.config app/rate 200 --if-version 17
      stentor table put shop.config leader "$(hostname)" --if-absent
      stentor table put shop.config workers/7 busy --ttl 30
      stentor table put shop.config app/certificate < certificate.der
    """
    from stentor.cli.output import print_json
    from stentor.client.table_leases import checked_seconds

    _check_key(key)
    if ttl is not None:
        checked_seconds(ttl, "--ttl")
    if if_absent and if_version is not None:
        raise InvalidArgument("--if-version and --if-absent cannot be used together.", hint="Use one of them.")
    data = _standard_input() if value is None else value.encode("utf-8", "surrogateescape")
    with _open(name, url, timeout, "put") as opened:
        try:
            entry = opened.put(key, data, if_version=if_version, if_absent=if_absent, ttl=ttl)
        except ConditionFailed as error:
            raise _told(error, opened, key, if_version) from error
    if quiet:
        return
    if json:
        print_json({"table": name, "key": key, "version": entry.version})
    else:
        print(f"{name} {key} version {entry.version}")


@app.command(context_settings=options.CONTEXT_SETTINGS)
def touch(
    name: Name,
    key: Key,
    quiet: Quiet = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """Let the time of a key that expires begin anew.

    It exits with 1 if the key is not there, and with 2 if it does not expire.

    \b
    Examples:
      stentor table touch shop.config workers/7
    """
    _check_key(key)
    with _open(name, url, timeout, "touch") as opened:
        opened.touch(key)
        entry = opened.entry(key)
    if not quiet:
        stays = "" if entry is None or entry.ttl is None else f" for {entry.ttl:g} s"
        print(f"{key} of {name} stays{stays}")


def _standard_input() -> bytes:
    if sys.stdin.isatty():
        print("Type the value. Press Ctrl-D to end.", file=sys.stderr, flush=True)
    data = sys.stdin.buffer.read(MESSAGE_VALUE_BYTES_MAX + 1)
    if len(data) > MESSAGE_VALUE_BYTES_MAX:
        raise LimitExceeded(
            f"Standard input has more than {MESSAGE_VALUE_BYTES_MAX:,} bytes, which is the limit of a value.",
            hint="Store it elsewhere, and put its address into the table.",
        )
    return data


def _told(error: ConditionFailed, opened: Table, key: str, if_version: int | None) -> ConditionFailed:
    """What is there instead, as far as it is still so."""
    opened.sync()
    entry = opened.entry(key)
    if entry is not None:
        wanted = "it had to be absent" if if_version is None else f"not at {if_version}"
        what = f"it is at version {entry.version}, {wanted}"
    elif if_version is not None:
        what = f"it is not there; it had to be at version {if_version}"
    else:
        return error
    return ConditionFailed(f"{key} of table {opened.name} was not changed: {what}.", hint=error.hint, object=key)


@app.command(context_settings=options.CONTEXT_SETTINGS)
def delete(
    name: Name,
    key: Key,
    if_version: IfVersion = None,
    quiet: Quiet = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """Delete a key. It is no failure if the key is not there.

    To delete a whole table, use `stentor topic delete`.

    \b
    Examples:
      stentor table delete shop.config app/rate
      stentor table delete shop.config app/rate --if-version 17
    """
    _check_key(key)
    with _open(name, url, timeout, "delete") as opened:
        was_there = key in opened
        try:
            opened.delete(key, if_version=if_version)
        except ConditionFailed as error:
            raise _told(error, opened, key, if_version) from error
    if not quiet:
        print(f"deleted {key} of {name}" if was_there else f"{name} has no key {key}")


@app.command("list", context_settings=options.CONTEXT_SETTINGS)
def list_keys(
    name: Name,
    subtree: Subtree = "",
    values: Annotated[bool, typer.Option("--values", help="Print the values, too.")] = False,
    json: options.Json = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """List the keys of a table with their versions and sizes.

    Keys that expire have a ttl: the seconds for which they stay when nobody puts or touches them.

    \b
    Examples:
      stentor table list shop.config
      stentor table list shop.config --subtree app/limits/ --values
    """
    from stentor.cli import formats
    from stentor.cli.output import print_json, print_table

    _check_subtree(subtree)
    with _open(name, url, timeout, "list") as opened:
        entries = sorted(opened.entries(subtree), key=lambda entry: entry.key)
    if json:
        shown = ({"value": formats.to_json(entry.value)} if values else {} for entry in entries)
        facts = (
            {"key": each.key, "version": each.version, "size": len(each.value)} | _ttl_of(each) for each in entries
        )
        print_json([fact | value for fact, value in zip(facts, shown, strict=True)])
        return
    rows: list[tuple[object, ...]] = [(each.key, each.version, show_bytes(len(each.value))) for each in entries]
    timed = any(each.ttl is not None for each in entries)
    if timed:
        ttls = ("" if each.ttl is None else f"{each.ttl:g} s" for each in entries)
        rows = [(*row, ttl) for row, ttl in zip(rows, ttls, strict=True)]
    if values:
        rows = [(*row, formats.printable(entry.value, _VALUE_WIDTH)) for row, entry in zip(rows, entries, strict=True)]
    headings = ("KEY", "VERSION", "SIZE", *(("TTL",) if timed else ()), *(("VALUE",) if values else ()))
    print_table(headings, rows, right=("VERSION", "SIZE", "TTL"))


def _ttl_of(entry: TableEntry) -> dict[str, Any]:
    return {} if entry.ttl is None else {"ttl": entry.ttl, "ephemeral": bool(entry.session)}


@app.command(context_settings=options.CONTEXT_SETTINGS)
def watch(
    name: Name,
    subtree: Subtree = "",
    count: Annotated[int | None, typer.Option(metavar="N", min=1, help="Stop after N changes.")] = None,
    idle: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0.001, help="Stop after this many seconds without a change.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print a line of JSON for each change: the key as it was and as it is.")
    ] = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """Print changes of a table as they are made.

    Press Ctrl-C to stop. It prints changes from now on; `stentor table list` shows what is there.

    \b
    Examples:
      stentor table watch shop.config
      stentor table watch shop.config --subtree app/limits/ --json
    """
    from stentor.cli.output import LiveOutput

    _check_subtree(subtree)
    shape = _json_line if json else _line
    with (
        _open(name, url, timeout, "watch") as opened,
        opened.watch(subtree) as changes,
        LiveOutput(on_failure=opened.close) as output,
    ):
        missed = _Missed()
        try:
            for number, change in enumerate(_arriving(changes, idle), 1):
                output.write(shape(change))
                missed.add(change.skipped)
                if number == count:
                    return
        finally:
            missed.report()


class _Missed:
    """How many changes were not shown, on standard error: at once, then once a second at most, and at the end."""

    def __init__(self) -> None:
        self._changes = 0
        self._reported_at = -inf

    def add(self, changes: int) -> None:
        """Count changes that were merged into the one just shown, or were removed before it."""
        self._changes += changes
        if self._changes and time.monotonic() > self._reported_at + _MISSED_PAUSE_S:
            self.report()

    def report(self) -> None:
        """Say how many are missing since the last time."""
        if self._changes:
            missed = plural(self._changes, "change")
            complain(
                f"{missed} were not shown, because this command was behind. Later changes of their keys are shown."
            )
        self._changes, self._reported_at = 0, time.monotonic()


def _arriving(changes: TableWatch, idle: float | None) -> Iterator[TableChange]:
    while True:
        try:
            yield changes.get(timeout=idle)
        except (Closed, DeadlineExceeded):  # nobody reads our output any more, or nothing happened for long enough
            return


def _line(change: TableChange) -> bytes:
    from stentor.cli import formats

    key = formats.printable(change.key.encode(), len(change.key) * 4)
    if change.new is None:
        return f"{'expired' if change.expired else 'deleted'}  {key}\n".encode()
    value = formats.printable(change.new.value, max(_VALUE_WIDTH, len(change.new.value)))
    return f"put      {key}  version {change.new.version}  {value}".rstrip().encode() + b"\n"


def _json_line(change: TableChange) -> bytes:
    import msgspec

    from stentor.cli.formats import to_json

    old, new = (
        None if entry is None else {"value": to_json(entry.value), "version": entry.version}
        for entry in (change.old, change.new)
    )
    more: dict[str, Any] = {"expired": True} if change.expired else {}
    if change.skipped:
        more["skipped"] = change.skipped
    return msgspec.json.encode({"key": change.key, "old": old, "new": new, **more}) + b"\n"


@app.command(context_settings=options.CONTEXT_SETTINGS)
def dump(
    name: Name,
    subtree: Subtree = "",
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """Write a table to standard output, one line of JSON for each key.

    It is the table as it is at one moment, in the order of the keys. A value that is not text is {"base64": "..."}.

    \b
    Examples:
      stentor table dump shop.config > config.jsonl
      stentor table dump shop.config | stentor table load shop.copy
    """
    from stentor.cli import table_lines
    from stentor.cli.output import LiveOutput

    _check_subtree(subtree)
    with _open(name, url, timeout, "dump") as opened:
        entries = sorted(opened.entries(subtree), key=lambda entry: entry.key)
    with LiveOutput() as output:
        for entry in entries:
            output.write(table_lines.write_line(entry))


@app.command(context_settings=options.CONTEXT_SETTINGS)
def load(
    name: Name,
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="Files to load. Without them, or as -, it is standard input."),
    ] = None,
    quiet: Quiet = False,
    json: options.Json = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """Put keys into a table that `stentor table dump` has written.

    Each line is a JSON object with key and value. A null value deletes the key. Keys that are not named stay as they
    are, and all versions are new. Lines are loaded in batches: a failure leaves those before it in the table.

    \b
    Examples:
      stentor table load shop.config config.jsonl
      stentor table dump shop.config | stentor table load shop.copy
    """
    from stentor.cli.output import print_json
    from stentor.cli.publish_input import open_sources

    started = time.monotonic()
    with (
        open_sources(files or [], "Check the name of the file.") as (sources, total),
        _open(name, url, timeout, "load") as opened,
    ):
        keys, size = _load(opened, sources, total)
    seconds = time.monotonic() - started
    if quiet:
        return
    if json:
        print_json({"table": name, "keys": keys, "bytes": size, "seconds": round(seconds, 3)})
    else:
        print(f"loaded {plural(keys, 'key')} into {name} ({show_bytes(size)} in {show_seconds(seconds)})")


def _load(opened: Table, sources: list[Any], total: int | None) -> tuple[int, int]:
    """Load everything; how many keys and bytes that was."""
    from stentor.cli.progress import InputProgress
    from stentor.cli.publish_input import read_lines
    from stentor.cli.table_lines import Gathered

    gathered, size = Gathered(opened), 0
    try:
        with InputProgress(total, "keys") as progress:
            for source, stream in sources:
                line = 1
                for lines in read_lines(source, stream):
                    for length in gathered.add_lines(lines, source, line):
                        size += length
                    line += len(lines)
                    progress.show(gathered.loaded, size)
            gathered.finish()
    except BaseException:
        if gathered.loaded:
            complain(f"{plural(gathered.loaded, 'key')} of table {opened.name} were loaded before this.")
        raise
    return gathered.loaded, size
