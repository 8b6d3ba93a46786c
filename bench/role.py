"""The program inside each producer and consumer process: ``python -m bench.role MODULE:FUNCTION SPEC``.

It speaks lines of JSON: out go events (`ready`, `done` ...), in come commands (`go` ...). When stdin
closes the process ends at once, so it never outlives the harness.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import traceback
from importlib import import_module
from typing import TYPE_CHECKING, Any

from bench.model import NotAvailableError, Spec

if TYPE_CHECKING:
    from collections.abc import Callable


class Harness:
    """The role's end of the conversation with the harness."""

    def __init__(self) -> None:
        self._commands: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._pump, daemon=True).start()

    def _pump(self) -> None:
        for line in sys.stdin:
            self._commands.put(json.loads(line))
        os._exit(0)

    def say(self, event: str, **fields: Any) -> None:
        sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
        sys.stdout.flush()

    def wait(self) -> dict[str, Any]:
        """The next command."""
        return self._commands.get()

    def on_command(self, act: Callable[[dict[str, Any]], Any]) -> None:
        """Calls `act` in a thread of its own with every command from now on."""

        def relay() -> None:
            while True:
                act(self.wait())

        threading.Thread(target=relay, daemon=True).start()


def main() -> None:
    (module, _, function), spec = sys.argv[1].partition(":"), Spec.from_json(sys.argv[2])
    harness = Harness()
    try:
        getattr(import_module(module), function)(spec, harness)
    except (ImportError, NotAvailableError) as reason:
        harness.say("not available", reason=str(reason))
    except BaseException:  # noqa: BLE001 - the harness reads it from the log
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    # Stay connected until the harness closes stdin: what was sent unacknowledged may still be on its way.
    threading.Event().wait()


if __name__ == "__main__":
    main()
