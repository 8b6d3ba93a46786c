"""Handlers that worker processes import by their names."""

import os
import signal
import threading
import time
from pathlib import Path


def note(message):
    """Write down which process handled what; some values do harm."""
    folder = Path(os.environ["NOTES"])
    value = message.value.decode()
    if value == "raise":
        raise ValueError("a bad message")
    if value == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if value == "die once" and not (folder / "died").exists():
        (folder / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if value == "hang once" and not (folder / "hung").exists():
        (folder / "hung").touch()
        threading.Event().wait(60)
    with (folder / str(os.getpid())).open("a") as lines:
        key = "" if message.key is None else message.key.decode()
        lines.write(f"{time.monotonic_ns()} {message.partition} {message.offset} {key}\n")


def note_batch(messages):
    for message in messages:
        note(message)


async def note_later(message):
    note(message)


not_a_function = 7


def tell_trace(message):
    """Write down the id of the trace that this handler is called in."""
    from opentelemetry import trace

    found = trace.get_current_span().get_span_context()
    (Path(os.environ["NOTES"]) / "trace").write_text(f"{found.trace_id:032x}")


def note_job(job):
    assert job.attempt
    assert job.queue == job.topic
    note(job)


def note_attempt(job):
    """The first attempt at a certain job waits to be killed."""
    folder = Path(os.environ["NOTES"])
    value = job.value.decode()
    if value == "wait" and job.attempt == 1:
        part = folder / "waits.part"
        part.write_text(str(os.getpid()))
        part.rename(folder / "waits")
        threading.Event().wait(60)
    with (folder / "attempts").open("a") as lines:
        lines.write(f"{value} {job.attempt}\n")


def hang(job):
    if job.value == b"hang":
        threading.Event().wait(60)
