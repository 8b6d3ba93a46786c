"""Errors about the work of handlers: a part of the tree in `stentor.errors`."""

from __future__ import annotations

from stentor.error_root import StentorError


class HandlerError(StentorError):
    """A handler raised an error in a worker process. The message names it; `detail["traceback"]` has the traceback.

    Correct the handler, or let such messages pass with `on_error="skip"` or `dead_letters=`.
    """

    code = "handler_error"


class HandlerTimeout(StentorError, TimeoutError):
    """A handler took longer with a message than `time_limit` allows. It is also a `TimeoutError`.

    Make the handler faster, or allow more time. In threads and loops it cannot be ended, and the member leaves its
    group; a worker process is killed and replaced. On a queue the attempt has failed, and the work goes on.
    """

    code = "handler_timeout"


class WorkerDied(StentorError):
    """A worker process died at the same message as often as `attempts` allows, or could not be started.

    Look at what it wrote, and at the kernel's log if it was killed. With `dead_letters=` such messages do not end the
    work. On a queue the first such death is a failed attempt.
    """

    code = "worker_died"
