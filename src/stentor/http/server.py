"""Health for load balancers, metrics for Prometheus, statistics as JSON, and one small page.

Everything shown here comes from the broker's statistics. They are gathered in slices and written out in a thread: a
scrape of thousands of partitions does not hold up the loop. Only one is written out at a time, for all who asked before
it began: sixty threads that write would each take the interpreter from the loop in turn (C35).
"""

from __future__ import annotations

import asyncio
import errno
import html
import logging
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from stentor import limits
from stentor.errors import ConnectionFailed, InvalidArgument, StentorError
from stentor.http.hosts import Hosts
from stentor.http.metrics import render
from stentor.security.permissions import ANYBODY, Action
from stentor.transport.sparing import SparingLog
from stentor.wire.statistics import as_map

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

    from stentor.security.permissions import Permissions
    from stentor.wire.messages import BrokerInfo
    from stentor.wire.statistics import BrokerStatistics, Health, QueueStatistics

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
    Writer = Callable[[BrokerInfo, BrokerStatistics], Any]

logger = logging.getLogger(__name__)

_SLICE_BYTES: Final = 65_536  # of an answer, in one turn of the loop: there may be a hundred who read


class Status(Protocol):
    """What HTTP needs to know of a broker."""

    @property
    def ready(self) -> bool: ...
    @property
    def stopping(self) -> bool: ...
    @property
    def confirmed(self) -> bool: ...
    @property
    def active(self) -> str: ...
    def info(self) -> BrokerInfo: ...
    def health(self) -> Health: ...
    async def gather_statistics(self) -> BrokerStatistics: ...


class HttpServer:
    """The HTTP side of one broker."""

    def __init__(
        self,
        status: Status,
        hosts: Iterable[str] = (),
        *,
        permissions: Permissions,
        connections_max: int = limits.HTTP_CONNECTIONS_MAX,
    ) -> None:
        """`hosts` are the names, besides this machine's, that it may be asked by."""
        self._status = status
        self._permissions = permissions
        self._hosts = Hosts(hosts)
        self._runner: web.AppRunner | None = None
        self._server: Any = None
        self._guests = _Guests(connections_max)
        self._writing = asyncio.Lock()
        self._shared: dict[Writer, asyncio.Task[Any]] = {}  # what waits to be written
        self._tasks: set[asyncio.Task[Any]] = set()
        self.host = ""
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        app = web.Application(middlewares=[self._guests.middleware])
        for path, handler in self._routes().items():
            app.router.add_get(path, handler)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, logger=_requests_log())
        await self._runner.setup()
        try:
            self._server = await self._guests.listen(self._runner, host, port)
        except OSError as error:
            await self.stop()
            raise _cannot_listen(host, port, error) from error
        self.host, self.port = host, self._server.sockets[0].getsockname()[1]

    def _routes(self) -> dict[str, Handler]:
        return {
            "/": self._guarded(self._page),
            "/health/live": self._live,
            "/health/ready": self._ready,
            "/health/active": self._active,
            "/metrics": self._guarded(self._metrics),
            "/statistics": self._guarded(self._statistics),
        }

    def _guarded(self, handler: Handler) -> Handler:
        """Only for those who ask by a name of this broker (hosts.py), and may see how it is."""

        async def guarded(request: web.Request) -> web.StreamResponse:
            if not self._hosts.allows(request.headers.get("Host")):
                return web.json_response(
                    {
                        "error": "This broker does not serve HTTP under that host name.",
                        "hint": "Add the name to http_hosts.",
                    },
                    status=421,
                )
            try:
                self._permissions.check(ANYBODY, Action.OBSERVE)
            except StentorError as error:
                return web.json_response({"error": error.message, "hint": error.hint}, status=403)
            return await handler(request)

        return guarded

    async def stop(self) -> None:
        self._guests.close()
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        for task in self._tasks:
            task.cancel()

    async def _live(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({"live": True})

    async def _ready(self, _: web.Request) -> web.StreamResponse:
        return _health("ready", _why_not_ready(self._status), self._status)

    async def _active(self, _: web.Request) -> web.StreamResponse:
        return _health("active", _why_not_ready(self._status) or _why_not_active(self._status), self._status)

    async def _metrics(self, _: web.Request) -> web.StreamResponse:
        body, content_type = await self._written(_text)
        return _long(body, content_type)

    async def _statistics(self, _: web.Request) -> web.StreamResponse:
        return _long(await self._written(_json), "application/json")

    async def _page(self, _: web.Request) -> web.StreamResponse:
        return _long(await self._written(_page), "text/html; charset=utf-8")

    async def _written(self, write: Writer) -> Any:
        """Return the statistics, written out; all who ask before that has begun share it."""
        task = self._shared.get(write)
        if task is None:
            task = self._shared[write] = asyncio.get_running_loop().create_task(self._write(write))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def _write(self, write: Writer) -> Any:
        async with self._writing:
            try:
                statistics = await self._status.gather_statistics()
            finally:
                del self._shared[write]  # who comes from now on is shown what is so then
            return await asyncio.to_thread(write, self._status.info(), statistics)


class _Guests:
    """The connections to the HTTP side: so many at most, and each has a deadline that only a request moves.

    Whoever comes is let in: a load balancer must hear how this broker is, whoever else is here. Beyond the limit, one
    who came before has to go: of the host that has most connections, the one that was quiet for longest; if all of them
    wait for answers, the one that has waited for longest.
    """

    def __init__(self, connections_max: int) -> None:
        self._connections_max = connections_max
        self._guests: dict[_Guest, None] = {}  # who was quiet for longest is first
        self._hosts: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    async def listen(self, runner: web.AppRunner, host: str, port: int) -> Any:
        loop = asyncio.get_running_loop()
        serve = runner.server
        assert serve is not None
        server = await loop.create_server(lambda: _Guest(self, serve()), host, port, reuse_address=True)
        self._sweep()
        return server

    def arrived(self, guest: _Guest) -> None:
        """Let one in, and another one go if there are too many."""
        if len(self._guests) >= self._connections_max:
            most = max(self._hosts.values())
            crowd = [one for one in self._guests if self._hosts[one.host] == most]
            self._turn_out(next((one for one in crowd if not one.asking), crowd[0]))
        self._hosts[guest.host] += 1
        self.extend(guest)

    def left(self, guest: _Guest) -> None:
        if guest in self._guests:
            del self._guests[guest]
            self._hosts[guest.host] -= 1
            if not self._hosts[guest.host]:
                del self._hosts[guest.host]

    @web.middleware
    async def middleware(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """A request has arrived: there is time for its answer, and then for the next one."""
        guest = next((one for one in self._guests if one.transport is request.transport), None)
        if guest is None:
            return cast("web.StreamResponse", await handler(request))
        self.extend(guest)
        guest.asking += 1
        try:
            return cast("web.StreamResponse", await handler(request))
        finally:
            guest.asking -= 1
            if guest in self._guests:
                self.extend(guest)

    def extend(self, guest: _Guest) -> None:
        """It has asked something, or was answered."""
        guest.deadline = asyncio.get_running_loop().time() + limits.HTTP_REQUEST_S
        self._guests.pop(guest, None)
        self._guests[guest] = None

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for guest in [one for one in self._guests if now > one.deadline]:
            self._turn_out(guest)
        self._timer = loop.call_later(limits.SWEEP_S, self._sweep)

    def _turn_out(self, guest: _Guest) -> None:
        self.left(guest)
        if guest.transport is not None:
            guest.transport.abort()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class _Guest(asyncio.Protocol):
    """One connection, which aiohttp answers."""

    def __init__(self, guests: _Guests, inner: asyncio.Protocol) -> None:
        self._guests = guests
        self._inner = inner
        self.transport: Any = None  # of asyncio or of uvloop, which have no class in common
        self.host = ""
        self.asking = 0  # requests that are being answered
        self.deadline = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.host = str((transport.get_extra_info("peername") or ("",))[0])
        self._guests.arrived(self)
        self._inner.connection_made(transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._guests.left(self)
        self._inner.connection_lost(error)

    def data_received(self, data: bytes) -> None:
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()


class _Malformed(logging.Filter):
    """What is not HTTP costs one line, without the way it came, and only so many lines a second."""

    def __init__(self, log: SparingLog) -> None:
        super().__init__()
        self._log = log

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError):
            return True  # a fault of ours: everything about it is wanted
        self._log.info("%s: %s", "a request is not HTTP", error.message or type(error).__name__)
        return False


def _requests_log() -> logging.Logger:
    """The logger that aiohttp gets, one for each server."""
    found = logging.Logger("stentor.http.requests")  # noqa: LOG001 - its filter is this server's own
    found.parent = logger
    found.addFilter(_Malformed(SparingLog(logger, time.monotonic)))
    return found


def _long(body: bytes, content_type: str) -> web.Response:
    """An answer of any size. Those who share one are answered at the same moment: whole, it would be copied for each of
    them in one turn of the loop.
    """
    headers = {"Content-Type": content_type, "Content-Length": str(len(body))}
    return web.Response(body=_slices(body), headers=headers)


async def _slices(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), _SLICE_BYTES):
        yield body[start : start + _SLICE_BYTES]
        await asyncio.sleep(0)


def _health(what: str, reason: str, status: Status) -> web.Response:
    """What is wrong without being a reason to go elsewhere is told as warnings."""
    answer: dict[str, Any] = {what: False, "reason": reason} if reason else {what: True}
    wrong = status.health().problems if status.ready else ()
    if warnings := [problem.message for problem in wrong if problem.message != reason]:
        answer["warnings"] = warnings
    return web.json_response(answer, status=503 if reason else 200)


def _why_not_ready(status: Status) -> str:
    """Why clients should go elsewhere; empty while they need not."""
    if status.stopping:
        return "This broker is stopping."
    if not status.ready:
        return "This broker is starting."
    if not status.confirmed:
        return "This broker hears neither the controller nor a majority of the brokers."
    return status.health().unready


def _why_not_active(status: Status) -> str:
    """Why this broker only stands by; empty while it serves data, as every broker does unless one is named for it."""
    active = status.active
    if active and active != status.info().id:
        return f"This broker stands by for {active}, which is the active one."
    return ""


def _cannot_listen(host: str, port: int, error: OSError) -> Exception:
    if error.errno == errno.EADDRINUSE:
        return ConnectionFailed(
            f"HTTP port {port} on {host} is in use.",
            hint="Choose another with --http-port, or 0 for any free one.",
            operation="listen",
            object=f"{host}:{port}",
        )
    return InvalidArgument(f"Cannot serve HTTP on {host}:{port}: {error.strerror or error}.", operation="listen")


def _text(_: BrokerInfo, statistics: BrokerStatistics) -> tuple[bytes, str]:
    return render(statistics)


def _json(_: BrokerInfo, statistics: BrokerStatistics) -> bytes:
    """In pieces, so that the thread lets others run between them."""
    rows = statistics.partitions
    size = limits.STATISTICS_SLICE
    pieces = [msgspec.json.encode(rows[start : start + size])[1:-1] for start in range(0, len(rows), size)]
    begun = msgspec.json.encode({**as_map(statistics), "partitions": []}).removesuffix(b"]}")
    return begun + b",".join(pieces) + b"]}"


def _page(info: BrokerInfo, statistics: BrokerStatistics) -> bytes:
    """What a person sees who opens the broker in a browser."""
    rows = "".join(
        f"<tr><td>{html.escape(p.topic)}</td><td>{p.partition}</td><td>{p.log.start}</td>"
        f"<td>{p.replica.committed}</td><td>{p.messages_in}</td><td>{p.streams}</td></tr>"
        for p in statistics.partitions
    )
    text = (
        "<!doctype html><meta charset=utf-8><title>Stentor</title>"
        "<style>body{font:15px system-ui;margin:2em}td,th{padding:.2em 1em;text-align:right}"
        "td:first-child,th:first-child{text-align:left}</style>"
        f"<h1>Stentor {html.escape(info.version)}</h1><p>Broker <b>{html.escape(info.id)}</b> on"
        f" <code>stentor://{html.escape(info.address)}</code>, {statistics.broker.connections} connections."
        ' See <a href="/metrics">metrics</a> and <a href="/statistics">statistics</a>.</p>'
        "<table><tr><th>topic<th>partition<th>start<th>committed<th>messages in<th>streams</tr>"
        f"{rows}</table>{_queues(statistics.queues)}"
    )
    return text.encode()


def _queues(queues: list[QueueStatistics]) -> str:
    """The queues whose partitions are led here."""
    if not queues:
        return ""
    rows = "".join(
        f"<tr><td>{html.escape(q.topic)}</td><td>{q.ready}</td><td>{q.in_work}</td><td>{q.delayed}</td>"
        f"<td>{q.dead_lettered}</td><td>{q.consumers}</td></tr>"
        for q in queues
    )
    headings = "<tr><th>queue<th>ready<th>in work<th>delayed<th>dead-lettered<th>consumers</tr>"
    return f"<h2>Queues led here</h2><table>{headings}{rows}</table>"
