"""The command line: one file per command, loaded when it is called, so that `stentor --help` is fast."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line of this process and leave with its exit code."""
    from stentor.cli.app import run
    from stentor.cli.standard import open_missing

    open_missing()
    sys.exit(run(sys.argv[1:]))
