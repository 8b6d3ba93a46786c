"""`python -m stentor.cli.reference`: the references in docs/ that are made from the program itself.

docs/cli.md is what `--help` prints, command by command. It is committed, and a test compares it with what this module
writes, so that it cannot fall behind. `scripts/make_docs.py` makes the other parts of docs/ that come from the code.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from stentor.cli.app import COMMANDS, app
from stentor.cli.options import CONTEXT_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator

WIDTH: Final = 100

_CLI_HEAD: Final = """\
# The command line

*Written by `make docs` from the program's own help. Do not edit it here.*

`stentor COMMAND --help` prints the same. Shell completion: `stentor --install-completion`.

## Exit codes

| code | meaning |
|---|---|
| 0 | success, also when the reader of the output closed the pipe (`\\| head`) |
| 1 | something failed: no broker, no such topic, a full disk, a failed check |
| 2 | the command line is wrong: an unknown option, a malformed position, an impossible setting |
| 130 | interrupted with Ctrl-C |

A failure prints one line on standard error, `stentor: what failed. What to do.`; `STENTOR_DEBUG=1` adds the traceback.

## Positions

`--start`, `--end` and `--at` take the same positions everywhere:

| position | meaning |
|---|---|
| `earliest` | the oldest message that is kept |
| `latest`, `now` | after the last message |
| `1234` | this offset, in every partition |
| `2026-01-31T12:00Z`, `2026-01-31` | the first message at or after this time; without a zone it is local time |
| `-1h`, `-1h30m`, `"15m ago"` | this long before now; units are ms, s, m, h, d, w |
| `last:100` | the newest 100 messages of each partition |
"""


def cli_reference() -> str:
    """The content of docs/cli.md."""
    parts = [_CLI_HEAD]
    for path, text in _helps(typer.main.get_command(app), "stentor", None):
        parts.append(f"\n## {path}\n\n```text\n{text}\n```\n")
    return "".join(parts)


def _helps(command: Any, name: str, parent: Any) -> Iterator[tuple[str, str]]:
    """The help of a command and of those below it."""
    settings = {**CONTEXT_SETTINGS, "terminal_width": WIDTH, "max_content_width": WIDTH}
    context = type(command).context_class(command, info_name=name, parent=parent, **settings)
    text = command.get_help(context)
    yield context.command_path, "\n".join(line.rstrip() for line in text.splitlines()).strip()
    for below in COMMANDS if parent is None else getattr(command, "commands", {}):
        yield from _helps(command.get_command(context, below), below, context)


REFERENCES: Final = {"cli.md": cli_reference}


def main() -> int:
    """Write the references, or say which of them are out of date."""
    parser = argparse.ArgumentParser(prog="python -m stentor.cli.reference", description=__doc__)
    parser.add_argument("--write", metavar="DIR", type=Path, help="write the files into this folder")
    parser.add_argument("--check", metavar="DIR", type=Path, help="fail if the files in this folder differ")
    chosen = parser.parse_args()
    if chosen.check:
        return _check(chosen.check)
    for name, make in REFERENCES.items():
        if chosen.write:
            (chosen.write / name).write_text(make(), encoding="utf-8")
        else:
            print(make())
    return 0


def _check(folder: Path) -> int:
    old = [name for name, make in REFERENCES.items() if (folder / name).read_text(encoding="utf-8") != make()]
    if old:
        print(f"out of date: {', '.join(old)}; run `make docs`", file=sys.stderr)
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main())
