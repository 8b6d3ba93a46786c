"""`stentor snapshot`: a table at one sequence, as a file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from stentor.cli import options
from stentor.cli.quantities import plural, show_bytes
from stentor.core.names import check_topic_name
from stentor.errors import InvalidArgument, TopicNotFound

app = options.make_app()


@app.command(context_settings=options.CONTEXT_SETTINGS)
def snapshot(
    name: Annotated[str, typer.Argument(metavar="TABLE", help="Name of the table, such as shop.config.")],
    out: Annotated[
        Path,
        typer.Option("--out", metavar="FILE", help="File to write. It replaces an earlier one once it is whole."),
    ],
    kind: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="parquet|csv|json", help="What to write. Default: as the suffix of the file says."
        ),
    ] = None,
    subtree: Annotated[
        str, typer.Option("--subtree", metavar="PATH", help="Only keys below this path, which ends with a slash: app/.")
    ] = "",
    sequence: Annotated[
        str | None,
        typer.Option(
            "--sequence", metavar="N,N,...", help="Take an earlier state: the offset of each partition, with commas."
        ),
    ] = None,
    json: options.Json = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """Write a table, as it is at one sequence, to a Parquet, CSV or JSON file.

    The columns are key, value, version and timestamp. Changes that are made meanwhile are not in it. The sequence is
    printed, and Parquet files hold it as metadata. A JSON file is what `stentor table load` reads. Neither Spark nor a
    copy of the table is needed: memory holds one partition of the table at a time.

    \b
    Examples:
      stentor snapshot shop.config --out config.parquet
      stentor snapshot shop.config --out limits.csv --subtree limits/
      stentor snapshot shop.config --out before.json --sequence 120
    """
    from stentor.cli import snapshot_files
    from stentor.cli.output import print_json
    from stentor.cli.spark_session import bar
    from stentor.client.arrow import tables

    tables()  # says what to install, if need be
    check_topic_name(name)
    chosen = snapshot_files.format_of(out, kind)
    wanted = None if sequence is None else _sequence(sequence)
    with options.connect(url, timeout, "snapshot") as client, bar("reading", None) as progress:
        taken = _taken(client, name, subtree, wanted)
        told = ",".join(map(str, taken.sequence))
        facts = {"stentor.table": name, "stentor.sequence": told, "stentor.subtree": subtree}
        batches = taken.batches(_teller(progress, taken.changes))
        rows = snapshot_files.write_file(out, chosen, batches, facts)
    size = out.stat().st_size
    if json:
        print_json({"table": name, "sequence": taken.sequence, "keys": rows, "file": str(out), "bytes": size})
    else:
        print(f"{plural(rows, 'key')} of {name} at sequence {told} in {out}, {show_bytes(size)}")


def _taken(client: Any, name: str, subtree: str, sequence: tuple[int, ...] | None) -> Any:
    from stentor.client.table_snapshot import TableSnapshot

    try:
        return TableSnapshot(client, name, subtree=subtree, sequence=sequence)
    except TopicNotFound as error:
        hint = f"Make it with `stentor table create {name}`, or look with `stentor topic list`."
        raise TopicNotFound(f"There is no table {name}.", hint=hint, object=name) from error


def _sequence(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.strip().strip("()[]").split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise InvalidArgument(f"--sequence {text!r} is not a sequence.", hint="Write the offsets like 120 or 120,98.")
    return tuple(map(int, parts))


def _teller(progress: Any, total: int) -> Any:
    """Shows how many changes are read, and how many a second."""
    begun = time.monotonic()

    def tell(done: int) -> None:
        rate = f"{done / max(0.001, time.monotonic() - begun):,.0f} changes/s"
        progress.update(progress.tasks[0].id, completed=done, total=total, rate=rate)

    return tell
