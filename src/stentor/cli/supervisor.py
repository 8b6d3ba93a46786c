"""The way to the supervisor of a local cluster: started here, found by its state file, spoken to through a socket."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

from stentor.errors import ConnectionFailed, DeadlineExceeded, InternalError, InvalidArgument, StentorError

STATE_FILE: Final = "cluster.json"
LOG_FILE: Final = "cluster.log"
_ANSWER_S: Final = 120.0
_END_S: Final = 60.0
_LOG_BYTES: Final = 600


class StartedProcess(NamedTuple):
    """A cluster that has just been started."""

    state: dict[str, Any]
    process: subprocess.Popen[bytes]


def start(data: Path, settings: dict[str, Any], *, detach: bool) -> StartedProcess:
    """Start a supervisor and wait until its cluster is ready. It lives as long as we do, or on its own."""
    if (data / STATE_FILE).exists():
        state = _read_state(data)
        if _is_alive(state):
            raise InvalidArgument(
                f"A cluster already runs in {data} (process {state['pid']}).",
                hint=f"`{_command(data, 'down')}` stops it.",
            )
        _end_orphans(state)
    data.mkdir(0o700, parents=True, exist_ok=True)
    wanted = {**settings, "data": str(data.resolve()), "attached": not detach}
    command = [sys.executable, "-m", "stentor.testing.supervisor", json.dumps(wanted)]
    with (data / LOG_FILE).open("ab") as log:
        process = subprocess.Popen(  # noqa: S603 - our own module
            command,
            # The supervisor of a cluster in the foreground sees by its standard input that we are gone.
            stdin=subprocess.DEVNULL if detach else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    try:
        return StartedProcess(_await_ready(process, data), process)
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        process.wait(_END_S)
        if process.stdin is not None:
            process.stdin.close()
        raise


def _await_ready(process: subprocess.Popen[bytes], data: Path) -> dict[str, Any]:
    assert process.stdout is not None
    with process.stdout as output:
        said = output.readline()
    if not said:
        words = (data / LOG_FILE).read_text(encoding="utf-8", errors="replace")[-_LOG_BYTES:].split()
        raise InternalError(f"The cluster did not start: {' '.join(words)}", hint=f"See {data / LOG_FILE}.")
    state: dict[str, Any] = _result(json.loads(said), "ready")
    return state


def ask(data: Path, request: str, **arguments: Any) -> Any:
    """Tell the supervisor of the cluster in this directory to do something; what it answers."""
    state = find(data)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_ANSWER_S)
        try:
            connection.connect(state["control"])
            connection.sendall(json.dumps({"do": request, **arguments}).encode() + b"\n")
            with connection.makefile("rb") as lines:
                answer = lines.readline()
        except TimeoutError as error:
            raise DeadlineExceeded(f"The cluster in {data} did not answer within {_ANSWER_S:g} s.") from error
        except OSError as error:
            raise _gone(data, state) from error
    if not answer:
        raise _gone(data, state)
    return _result(json.loads(answer), "done")


def find(data: Path) -> dict[str, Any]:
    """The state of the cluster in this directory, as it was written down last."""
    if not (data / STATE_FILE).exists():
        raise ConnectionFailed(
            f"No cluster runs in {data}.",
            hint=f"Start one with `{_command(data, 'up')}`, or name its directory with --data.",
        )
    return _read_state(data)


def end(data: Path) -> None:
    """Stop the cluster and wait until all of it is gone; what a killed supervisor left behind is stopped too."""
    state = find(data)
    if not _is_alive(state):
        _end_orphans(state)
        (data / STATE_FILE).unlink(missing_ok=True)
        return
    ask(data, "down")
    deadline = time.monotonic() + _END_S
    while _is_alive(state):
        if time.monotonic() > deadline:
            raise DeadlineExceeded(
                f"The cluster in {data} did not stop within {_END_S:g} s.", hint=f"See {data / LOG_FILE}."
            )
        time.sleep(0.02)


def _read_state(data: Path) -> dict[str, Any]:
    file = data / STATE_FILE
    try:
        state: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidArgument(f"{file} is not the state of a cluster: {error}.") from error
    return state


def _result(answer: dict[str, Any], name: str) -> Any:
    if "error" in answer:
        kind: type[StentorError] = InvalidArgument if answer.get("usage") else InternalError
        raise kind(answer["error"])
    return answer[name]


def _gone(data: Path, state: dict[str, Any]) -> ConnectionFailed:
    return ConnectionFailed(
        f"The supervisor of the cluster in {data} (process {state['pid']}) is gone.",
        hint=f"`{_command(data, 'down')}` stops what it left behind.",
    )


def _command(data: Path, verb: str) -> str:
    return f"stentor cluster {verb} --data {data}"


def _is_alive(state: dict[str, Any]) -> bool:
    return "stentor.testing.supervisor" in _command_line(state["pid"])


def _command_line(pid: int | None) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _end_orphans(state: dict[str, Any]) -> None:
    """End the processes of a cluster whose supervisor was killed: those that are still the ones written down."""
    for kind in ("haproxy", "brokers", "etcd"):
        for each in state[kind]:
            if each["pid"] and state["data"] in _command_line(each["pid"]):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each["pid"], signal.SIGKILL)
    shutil.rmtree(Path(state["control"]).parent, ignore_errors=True)
    if state["network"]:
        command = [sys.executable, "-c", "from stentor.testing.network import remove_left_behind as r; r()"]
        subprocess.run(command, check=False, stderr=subprocess.DEVNULL)  # noqa: S603 - our own module
