"""A gateway as a process: run by itself, or as the child of a broker that starts it again when it ends.

A child has a pipe from its broker as standard input. When the broker dies, however it dies, the pipe ends and the
gateway with it: its clients hear no HUGZ from a broker that is dead.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from stentor.gateways.zmq import bounds
from stentor.gateways.zmq.gateway import GatewayOptions, ZmqGateway

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)


async def serve(options: GatewayOptions, on_ready: Callable[[], None], *, child: bool = False) -> None:
    """Run a gateway until SIGTERM, SIGINT, or the end of its broker; raises what ended it otherwise."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if child:
        _stop_with_parent(loop, stop)
        _give_way()
    stopping = loop.create_task(stop.wait())
    running = loop.create_task(_serve(options, on_ready))
    try:
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
    finally:
        stopping.cancel()
        running.cancel()
        await asyncio.gather(running, stopping, return_exceptions=True)


async def _serve(options: GatewayOptions, on_ready: Callable[[], None]) -> None:
    async with ZmqGateway(options) as gateway:
        on_ready()
        try:
            await gateway.run()
        finally:
            logger.info("the ZeroMQ gateway stops: %s", gateway.statistics())


def _stop_with_parent(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    descriptor = sys.stdin.fileno()

    def read() -> None:
        if not os.read(descriptor, 1024):
            loop.remove_reader(descriptor)
            stop.set()

    loop.add_reader(descriptor, read)


def _give_way() -> None:
    """When memory runs out, the gateway is ended, not the broker: ZeroMQ keeps a message until its last frame is there,
    however many a client sends.
    """
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


class GatewayChild:
    """Keeps a gateway running in a process of its own, as long as its broker runs."""

    def __init__(self, options: GatewayOptions, *, log_level: str, log_format: str) -> None:
        self._command = [*_command(options), "--log-level", log_level, "--log-format", log_format]
        self._process: asyncio.subprocess.Process | None = None
        self._keeping = asyncio.get_running_loop().create_task(self._keep())

    async def _keep(self) -> None:
        pause_s = bounds.RESTART_S
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the broker, which then ends its gateway
            )
            code = await self._process.wait()
            if loop.time() - began > bounds.RESTART_S_MAX:
                pause_s = bounds.RESTART_S
            logger.warning("the ZeroMQ gateway ended with code %d; it starts again in %g s", code, pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, bounds.RESTART_S_MAX)

    async def stop(self) -> None:
        """End it, and wait for that."""
        self._keeping.cancel()
        await asyncio.gather(self._keeping, return_exceptions=True)
        process = self._process
        if process is None or process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), bounds.STOP_S)
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _command(options: GatewayOptions) -> list[str]:
    """The command line that runs such a gateway as a child."""
    command = [sys.executable, "-m", "stentor", "gateway", "zmq", "--child"]
    command += ["--url", options.url or "", "--host", options.host, "--port", str(options.port)]
    if options.table:
        command += ["--table", options.table]
    for topic in options.topics:
        command += ["--topic", topic]
    if options.three_frames:
        command.append("--three-frames")
    if options.short_sequences:
        command.append("--short-sequences")
    return command
