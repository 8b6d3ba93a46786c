"""A whole node: a broker, its HTTP side and its gateways, started and stopped together.

The CLI, tests and embedders start brokers only through here.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import msgspec

from stentor.broker import Broker
from stentor.broker.sessions.admission import raise_descriptor_limit
from stentor.memory import give_back_freed_memory, keep_freed_memory, keep_long_lived_objects

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor.broker import BrokerConfig
    from stentor.gateways.zmq.gateway import GatewayOptions
    from stentor.wire.messages import BrokerInfo

logger = logging.getLogger(__name__)


class Node:
    """A broker with HTTP and gateways."""

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        self.broker = Broker(config)
        self._http: Any = None
        self._metrics: Any = None
        self._gateway: Any = None

    async def start(self) -> BrokerInfo:
        """Start everything, or nothing."""
        gateway = self._gateway_options() if self.config.zmq_port else None
        await self.broker.start()
        try:
            if self.config.http:
                await self._start_http()
            if gateway is not None:
                self._start_gateway(gateway)
        except BaseException:
            await self.stop()
            raise
        if self.config.metrics_interval_s:
            from stentor.self_metrics import MetricsPublisher

            self._metrics = MetricsPublisher(self.broker, self.config.metrics_interval_s)
        self.broker.watch.start()
        return self.broker.info()

    async def _start_http(self) -> None:
        # aiohttp is heavy; a broker without HTTP starts without it.
        from stentor.http.server import HttpServer

        http = HttpServer(
            self.broker,
            self._http_names(),
            permissions=self.broker.parts.ground.permissions,
            connections_max=self.broker.parts.admission.http_max,
        )
        await http.start(self.config.http_host or self.broker.listeners.plans[0].host, self.config.http_port)
        self._http = http
        await self.broker.serves_http(f"{http.host}:{http.port}")

    def _gateway_options(self) -> GatewayOptions:
        """What the gateway for ZeroMQ clients serves; says what is wrong or missing before anything starts."""
        from stentor.gateways.zmq.gateway import GatewayOptions

        config = self.config
        options = GatewayOptions(
            host=config.zmq_host or self.broker.listeners.plans[0].host,
            port=config.zmq_port,
            table=config.zmq_table,
            topics=[name.strip() for name in config.zmq_topics.split(",") if name.strip()],
            three_frames=config.zmq_three_frames,
            short_sequences=config.zmq_short_sequences,
        )
        options.check()
        return options

    def _start_gateway(self, options: GatewayOptions) -> None:
        """In a process of its own: a slow ZeroMQ client cannot hold the broker's loop."""
        from stentor.gateways.zmq.process import GatewayChild

        options = msgspec.structs.replace(options, url=self.broker.local_address)
        self._gateway = GatewayChild(options, log_level=self.config.log_level, log_format=self.config.log_format)

    def _http_names(self) -> list[str]:
        """What this broker listens on and is told to be, and what an operator adds."""
        config, plans = self.config, self.broker.listeners.plans
        listed = [config.http_host, *config.http_hosts.split(",")]
        return [*listed, *(plan.host for plan in plans), *(plan.advertised for plan in plans)]

    async def stop(self) -> None:
        """HTTP last, so that load balancers see the broker leave."""
        if self._metrics is not None:
            await self._metrics.stop()
        if self._gateway is not None:
            await self._gateway.stop()
        self.broker.watch.stop()
        await self.broker.stop()
        if self._http is not None:
            await self._http.stop()


def run(config: BrokerConfig, on_ready: Callable[[BrokerInfo], None]) -> None:
    """Run a node until SIGTERM or SIGINT; returns after a graceful stop."""
    configure_logging(config)
    keep_freed_memory()
    raise_descriptor_limit()
    try:
        import uvloop

        runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    except ImportError:
        runner = asyncio.Runner()
    with runner:
        runner.run(_run(config, on_ready))


async def _run(config: BrokerConfig, on_ready: Callable[[BrokerInfo], None]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    node = Node(config)
    starting, stopping = loop.create_task(node.start()), loop.create_task(stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():  # told to stop while it waited for its coordination store, perhaps
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        return
    trimming = loop.create_task(give_back_freed_memory())
    try:
        info = starting.result()
        keep_long_lived_objects()
        on_ready(info)
        await stopping
    finally:
        stopping.cancel()
        trimming.cancel()
    await node.stop()


def configure_logging(config: BrokerConfig) -> None:
    """Structured logs of a broker process go to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if config.log_format == "json" else _TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(config.log_level.upper())
    logging.getLogger("aiohttp").setLevel(logging.WARNING)
    logging.getLogger("asyncio").setLevel(logging.WARNING)


class _TextFormatter(logging.Formatter):
    def __init__(self) -> None:
        self.converter = time.gmtime
        super().__init__("%(asctime)s.%(msecs)03dZ %(levelname)-7s %(name)s  %(message)s", "%Y-%m-%dT%H:%M:%S")


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(entry).decode()
