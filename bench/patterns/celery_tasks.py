"""What the workers of both sides do in the comparison with Celery: next to nothing, and say so.

The handler appends one byte to a file: the file's size says how many were handled, and when.
"""

from __future__ import annotations

import os
from typing import Any

NOTES = "STENTOR_BENCH_NOTES"
BROKER = "STENTOR_BENCH_BROKER"
PREFETCH = "STENTOR_BENCH_PREFETCH"

_notes = -1


def handle(_: Any) -> None:
    """One task."""
    global _notes  # noqa: PLW0603 - opened once in each process
    if _notes < 0:
        _notes = os.open(os.environ[NOTES], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(_notes, b".")


def celery_app() -> Any:
    """Celery as it must be set so that a task is acknowledged when it is done, and no result is kept."""
    import celery

    made = celery.Celery("bench", broker=os.environ[BROKER])
    made.conf.update(
        task_acks_late=True,
        task_ignore_result=True,
        task_default_queue="jobs",
        worker_prefetch_multiplier=int(os.environ[PREFETCH]),  # for each process
        broker_connection_retry_on_startup=True,
    )
    made.task(handle, name="handle")
    return made


if BROKER in os.environ:
    app = celery_app()
