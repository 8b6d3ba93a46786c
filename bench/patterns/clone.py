"""A table of many keys, copied by a new process: all keys, all values, checked.

    stentor          `client.table(name)`
    redis hiredis    redis-py with hiredis: SCAN, and MGET for the page before in the same pipeline, into a dict
    redis bare       the same by hiredis on a socket of our own, without redis-py
    nats kv          `watchall()` on uvloop, with unlimited buffers, into a dict
    nats consumer    the ordered consumer inside `watchall()`, by a callback, without entries and queues around it

The server holds the table before the clock starts, and the client's process has imported what it needs. The clock runs
from the connect until the number of keys and 1,000 random values were verified.
"""

from __future__ import annotations

import asyncio
import random
import resource
import time
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.measure import PAGE_BYTES
from bench.model import BenchError, Case, NotAvailableError
from bench.patterns import data
from bench.patterns.plan import told
from bench.patterns.rows import Row, add
from bench.processes import START_S_MAX
from bench.programs import run
from bench.systems import nats, redis, redis_bare, stentor
from bench.systems.base import event_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bench.model import Spec
    from bench.patterns.plan import Plan
    from bench.processes import Processes, Server
    from bench.role import Harness

PAGE = 1000
LOOKED_AT = 1000
LOAD_S_MAX = 1800.0
CLONE_S_MAX = 1800.0
PEER_S_MAX = 600.0
"""A peer that takes longer gets a row that says so, and the others go on."""
BUCKET = "bench"
SYSTEMS = ("stentor", "redis hiredis", "redis bare", "nats kv", "nats consumer")


def measure(plan: Plan, say: Callable[[str], None]) -> list[Row]:
    rows: list[Row] = []
    with run() as (directory, processes):
        servers = {
            system: loaded(system, plan.clone_keys, directory, processes, rows, say)
            for system in ("stentor", "redis", "nats")
            if plan.wants(system)
        }
        cases = [system for system in SYSTEMS if servers.get(system.split()[0]) is not None]
        for turn in range(plan.repetitions):
            random.Random(turn).shuffle(cases)
            for system in cases:
                if system.startswith("nats") and turn >= plan.nats_repetitions:
                    continue
                server = servers[system.split()[0]]
                assert server is not None
                once(system, server.address, plan.clone_keys, turn, processes, rows)
            say(f"clone: turn {turn + 1} of {plan.repetitions}")
    return sorted(rows, key=lambda row: (row.figure, row.system))


def started(system: str, directory: Path, processes: Processes) -> Server:
    """A server of its own; what it keeps costs it nothing that is measured here."""
    case = Case("clone", system, "", "tuned", "none")
    known: dict[str, Any] = {"redis": redis.SYSTEM, "nats": nats.SYSTEM}
    if system == "stentor":
        return stentor.start_broker(directory / "stentor", processes)
    server: Server = known[system].start(case, directory, processes)
    return server


def loaded(
    system: str, keys: int, directory: Path, processes: Processes, rows: list[Row], say: Callable[[str], None]
) -> Server | None:
    """A server that holds the table; None if the system cannot be had here."""
    try:
        server = started(system, directory, processes)
        role = processes.role("bench.patterns.clone:load", told(system, server.address, keys=keys))
        seconds = role.expect("loaded", LOAD_S_MAX)["seconds"]
    except NotAvailableError as reason:
        rows.append(Row("clone", system, "time", "s", note=f"not available: {reason}"))
        return None
    say(f"{system}: {keys:,} keys loaded in {seconds:.1f} s")
    add(rows, "clone", system, "s", time_to_load=seconds)
    return server


def once(system: str, address: str, keys: int, turn: int, processes: Processes, rows: list[Row]) -> None:
    role = processes.role("bench.patterns.clone:clone", told(system, address, keys=keys, turn=turn))
    role.expect("ready", START_S_MAX)
    role.tell(go=True)
    try:
        found = role.expect("cloned", PEER_S_MAX if system != "stentor" else CLONE_S_MAX)
    except BenchError as error:
        if system == "stentor":
            raise
        rows.append(Row("clone", system, f"time, turn {turn + 1}", "s", note=f"no copy: {error}"))
        return
    finally:
        role.process.kill()
        role.process.wait()
    add(rows, "clone", system, "s", time=found["seconds"], processor_time_of_the_client=found["processor_s"])
    add(rows, "clone", system, "B", memory_of_the_client_per_key=found["bytes_per_key"])


# --- the processes that load ------------------------------------------------------------------------


def load(spec: Spec, harness: Harness) -> None:
    """Role: puts the table into a server."""
    began = time.monotonic()
    {"stentor": load_stentor, "redis": load_redis, "nats": load_nats}[spec.system](spec)
    harness.say("loaded", seconds=time.monotonic() - began)


def load_stentor(spec: Spec) -> None:
    import stentor as library

    with library.connect(spec.address, timeout=LOAD_S_MAX) as client:
        client.create_topic(spec.topic, kind="table", exist_ok=True)
        with client.producer(spec.topic) as producer:
            for keys, values in data.parts(spec.extra["keys"], PAGE):
                producer.send_many(values, keys)
            producer.flush(LOAD_S_MAX)


def load_redis(spec: Spec) -> None:
    client = redis.connect(spec)
    for keys, values in data.parts(spec.extra["keys"], PAGE):
        client.mset(dict(zip(keys, values, strict=True)))


def load_nats(spec: Spec) -> None:
    event_loop(fast=True).run_until_complete(_load_nats(spec))


async def _load_nats(spec: Spec) -> None:
    """Published without waiting: a put of each key would take many minutes."""
    client = await nats.connect(spec)
    context = client.jetstream(timeout=nats.WAIT_S)
    await context.create_key_value(bucket=BUCKET)
    keys = spec.extra["keys"]
    for some, values in data.parts(keys, PAGE):
        for key, value in zip(some, values, strict=True):
            await client.publish(f"$KV.{BUCKET}.{key.decode()}", value)
        await client.flush(nats.WAIT_S)
    while (await context.stream_info(f"KV_{BUCKET}")).state.messages < keys:  # noqa: ASYNC110 - it has no event for it
        await asyncio.sleep(0.1)
    await client.close()


# --- the processes that clone -----------------------------------------------------------------------


def clone(spec: Spec, harness: Harness) -> None:
    """Role: a new client takes the whole table, and looks at it."""
    ways: dict[str, Callable[[Spec], Mapping[Any, bytes]]] = {
        "stentor": clone_stentor,
        "redis hiredis": clone_redis,
        "redis bare": clone_redis_bare,
        "nats kv": clone_nats,
        "nats consumer": clone_nats_consumer,
    }
    warm(spec.system)
    keys, numbers = spec.extra["keys"], data.sample(spec.extra["keys"], LOOKED_AT, spec.extra["turn"])
    wanted = {data.key_of(number): data.value_of(number) for number in numbers}
    before = resident()
    harness.say("ready")
    harness.wait()
    began, processor = time.monotonic(), time.process_time()
    copy = ways[spec.system](spec)
    verify(copy, keys, wanted)
    seconds, processor_s = time.monotonic() - began, time.process_time() - processor
    harness.say("cloned", seconds=seconds, processor_s=processor_s, bytes_per_key=(resident() - before) / keys)


def warm(system: str) -> None:
    """Imports come before the clock, for every system."""
    modules = {
        "stentor": ("stentor.client.sync_client", "stentor.client.table"),
        "redis": ("redis", "hiredis"),
        "nats": ("nats", "uvloop"),
    }
    for name in modules[system.split(maxsplit=1)[0]]:
        import_module(name)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGE_BYTES


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def verify(copy: Mapping[Any, bytes], keys: int, wanted: Mapping[str, bytes]) -> None:
    """The number of keys, and some values; a peer may have keys as bytes."""
    if len(copy) != keys:
        raise BenchError(f"{len(copy)} keys instead of {keys}")
    for key, value in wanted.items():
        found = copy.get(key)
        if found is None:
            found = copy.get(key.encode())
        if found != value:
            raise BenchError(f"{key} holds {found!r}")


def clone_stentor(spec: Spec) -> Mapping[str, bytes]:
    import stentor as library

    client = library.connect(spec.address, timeout=CLONE_S_MAX)
    return client.table(spec.topic).__enter__()


def clone_redis(spec: Spec) -> dict[bytes, bytes]:
    client = redis.connect(spec)
    copy: dict[bytes, bytes] = {}
    cursor, keys = client.execute_command("SCAN", 0, "COUNT", PAGE)
    while keys or cursor:
        pipeline = client.pipeline(transaction=False)
        if keys:
            pipeline.execute_command("MGET", *keys)
        if cursor:
            pipeline.execute_command("SCAN", cursor, "COUNT", PAGE)
        replies = pipeline.execute()
        if keys:
            copy.update(zip(keys, replies[0], strict=True))
        cursor, keys = replies[-1] if cursor else (0, [])
    return copy


def clone_redis_bare(spec: Spec) -> dict[bytes, bytes]:
    connection = redis_bare.Connection(spec)
    pack = connection.pack
    copy: dict[bytes, bytes] = {}
    connection.send(pack(("SCAN", 0, "COUNT", PAGE)))
    cursor, keys = connection.receive()
    while keys or cursor != b"0":
        more = cursor != b"0"
        wish = pack(("MGET", *keys)) if keys else b""
        connection.send(wish + pack(("SCAN", cursor, "COUNT", PAGE)) if more else wish)
        if keys:
            copy.update(zip(keys, connection.receive(), strict=True))
        cursor, keys = connection.receive() if more else (b"0", [])
    return copy


def clone_nats(spec: Spec) -> dict[str, bytes]:
    return event_loop(fast=True).run_until_complete(_clone_nats(spec))


async def _clone_nats(spec: Spec) -> dict[str, bytes]:
    """With its own buffers, `watchall()` drops messages of a table this large, and returns fewer keys."""
    client = await nats.connect(spec)
    context = client.jetstream(timeout=CLONE_S_MAX)
    context.subscribe = partial(
        context.subscribe, pending_msgs_limit=nats.UNLIMITED, pending_bytes_limit=nats.UNLIMITED
    )
    watcher = await (await context.key_value(BUCKET)).watchall()
    copy: dict[str, bytes] = {}
    async for entry in watcher:
        if entry is None:
            break
        copy[entry.key] = entry.value
    return copy


def clone_nats_consumer(spec: Spec) -> dict[str, bytes]:
    return event_loop(fast=True).run_until_complete(_clone_nats_consumer(spec))


async def _clone_nats_consumer(spec: Spec) -> dict[str, bytes]:
    from nats.js.api import DeliverPolicy

    client = await nats.connect(spec)
    context = client.jetstream(timeout=CLONE_S_MAX)
    total = (await (await context.key_value(BUCKET)).status()).values
    prefix = f"$KV.{BUCKET}."
    start = len(prefix)
    copy: dict[str, bytes] = {}
    done = asyncio.Event()

    async def take(message: Any) -> None:
        copy[message.subject[start:]] = message.data
        if len(copy) == total:
            done.set()

    await context.subscribe(
        f"{prefix}>",
        stream=f"KV_{BUCKET}",
        cb=take,
        ordered_consumer=True,
        deliver_policy=DeliverPolicy.LAST_PER_SUBJECT,
        pending_msgs_limit=nats.UNLIMITED,
        pending_bytes_limit=nats.UNLIMITED,
    )
    await asyncio.wait_for(done.wait(), PEER_S_MAX)
    return copy
