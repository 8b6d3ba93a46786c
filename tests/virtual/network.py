"""A network in virtual time: connections that keep order, take their time, and can be cut in each direction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.virtual.world import Process, World

DELAY_US = (30, 400)


class Network:
    """Who listens where, and who reaches whom."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.delay_us = DELAY_US
        self._listening: dict[str, tuple[Process, Callable[[], Any]]] = {}
        self._ends: dict[Process, dict[End, None]] = {}
        self._cuts: set[tuple[str, str]] = set()
        self._dangling: dict[str, list[End]] = {}  # of machines that are off

    # --- faults ---------------------------------------------------------------------------------

    def cut(self, sender: str, receiver: str) -> None:
        self._cuts.add((sender, receiver))

    def isolate(self, name: str, others: list[str]) -> None:
        for other in others:
            if other != name:
                self.cut(name, other)
                self.cut(other, name)

    def heal(self) -> None:
        """All that waited goes on its way."""
        self._cuts.clear()
        for ends in self._ends.values():
            for end in ends:
                end.deliver_soon()

    def break_between(self, one: str, other: str) -> None:
        """Their connections end, and what was on its way is lost; both dial again."""
        for ends in list(self._ends.values()):
            for end in list(ends):
                if {end.process.name, end.other.process.name} == {one, other}:
                    end.break_off()

    def passes(self, sender: Process, receiver: Process) -> bool:
        return (sender.name, receiver.name) not in self._cuts

    def died(self, process: Process, *, silently: bool) -> None:
        """The system closes its sockets, and the others hear of it, unless the machine is off or they are cut off."""
        self._listening = {address: held for address, held in self._listening.items() if held[0] is not process}
        ends = list(self._ends.pop(process, {}))
        if silently:
            self._dangling.setdefault(process.name, []).extend(ends)
        else:
            self._reset(ends)

    def returned(self, name: str) -> None:
        """A machine is on again, and knows nothing of its connections."""
        self._reset(self._dangling.pop(name, []))

    def _reset(self, ends: list[End]) -> None:
        for end in ends:
            end.other.reset_by_peer()

    # --- connections ----------------------------------------------------------------------------

    def listen(self, process: Process, factory: Callable[[], Any], address: str) -> Server:
        self._listening[address] = process, factory
        return Server(self, address)

    def unlisten(self, address: str) -> None:
        self._listening.pop(address, None)

    async def dial(self, process: Process, factory: Callable[[], Any], address: str) -> tuple[Any, Any]:
        await asyncio.sleep(self.delay_s())
        found = self._listening.get(address)
        host = address.partition(":")[0]
        while (host, process.name) in self._cuts or (process.name, host) in self._cuts:
            await asyncio.sleep(0.2)  # it is dialled again, until the caller loses patience
            found = self._listening.get(address)
        await asyncio.sleep(self.delay_s())
        if found is None or found[0].dead:
            raise ConnectionRefusedError(111, "Connection refused")
        other, accept = found
        mine, theirs = End(self, process), End(self, other)
        mine.other, theirs.other = theirs, mine
        self.opened(theirs)  # by the system, whatever its process does
        protocol = factory()
        mine.open(protocol)
        self.world.at(self.world.now + self.between(), other, theirs.accepted, accept)
        return mine, protocol

    def between(self) -> int:
        return self.world.between(*self.delay_us)

    def delay_s(self) -> float:
        return self.between() / 1_000_000

    def opened(self, end: End) -> None:
        self._ends.setdefault(end.process, {})[end] = None

    def closed(self, end: End) -> None:
        self._ends.get(end.process, {}).pop(end, None)


class Server:
    """What `create_server` returns."""

    def __init__(self, network: Network, address: str) -> None:
        self._network, self._address = network, address
        self.sockets = [self]

    def setsockopt(self, *_: Any) -> None: ...

    def getsockname(self) -> tuple[str, int]:
        host, _, port = self._address.rpartition(":")
        return host, int(port)

    def close(self) -> None:
        self._network.unlisten(self._address)


_FIN, _RST = object(), object()


class End(asyncio.Transport):
    """One end of a connection: what its process writes to, and what the bytes of the other end arrive at."""

    other: End

    def __init__(self, network: Network, process: Process) -> None:
        super().__init__()
        self._network = network
        self._world = network.world
        self.process = process
        self._protocol: Any = None
        self._arriving: list[Any] = []  # bytes, or the end; in order
        self._last_arrival = 0
        self._reading = True
        self._closing = False
        self._lost = False
        self._high, self._low = 64 * 1024, 16 * 1024
        self._full = False

    def open(self, protocol: Any) -> None:
        self._protocol = protocol
        self._network.opened(self)
        protocol.connection_made(self)

    def accepted(self, factory: Callable[[], Any]) -> None:
        self.process.loop.call_soon(self._accept, factory)

    def _accept(self, factory: Callable[[], Any]) -> None:
        self.open(factory())
        self.deliver_soon()

    # --- writing --------------------------------------------------------------------------------

    def write(self, data: Any) -> None:
        if not self._closing:
            self._send(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(bytes(data) for data in list_of_data))

    def _send(self, what: Any) -> None:
        other = self.other
        other._arriving.append(what)
        other.deliver_soon()
        if not self._full and self.get_write_buffer_size() > self._high:
            self._full = True
            self._protocol.pause_writing()

    def get_write_buffer_size(self) -> int:
        return sum(len(part) for part in self.other._arriving if isinstance(part, bytes))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high, self._low = high or self._high, low or self._low

    def _drained(self) -> None:
        if self._full and self.get_write_buffer_size() <= self._low:
            self._full = False
            if not self._lost:
                self._protocol.resume_writing()

    # --- reading --------------------------------------------------------------------------------

    def deliver_soon(self) -> None:
        if self._arriving and not self.process.dead:
            self._last_arrival = max(self._last_arrival, self._world.now + self._network.between())
            self._world.at(self._last_arrival, self.process, self._arrive)

    def _arrive(self) -> None:
        if self._arriving and self._protocol is not None and self._network.passes(self.other.process, self.process):
            self.process.loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        while self._arriving and self._reading and not self._lost:
            what = self._arriving[0]
            if what is _FIN or what is _RST:
                self._arriving.clear()
                if what is _FIN:
                    self._protocol.eof_received()
                self._lose(None if what is _FIN else ConnectionResetError("reset by the other side"))
                return
            view = self._protocol.get_buffer(-1)
            taken = min(len(view), len(what))
            view[:taken] = what[:taken]
            if taken == len(what):
                self._arriving.pop(0)
            else:
                self._arriving[0] = what[taken:]
            self._protocol.buffer_updated(taken)
        if not self.other.process.dead and self.other._full:
            self.other.process.loop.call_soon(self.other._drained)

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self.deliver_soon()

    # --- the end --------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._send(_FIN)
            self._closing = True
            self.process.loop.call_soon(self._lose, None)

    def abort(self) -> None:
        if not self._lost:
            self.other._arriving.append(_RST)
            self.other.deliver_soon()
            self._closing = True
            self.process.loop.call_soon(self._lose, None)

    def reset_by_peer(self) -> None:
        """The other process died."""
        self._arriving.append(_RST)
        self.deliver_soon()

    def break_off(self) -> None:
        """What was under way is gone."""
        self._arriving = [_RST]
        self.deliver_soon()

    def _lose(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = self._closing = True
            self._network.closed(self)
            self._protocol.connection_lost(error)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self.other.process.name, 1) if name == "peername" else default
