"""What a client does without pyarrow, as a program: `python light_client.py URL`. The tests run it.

Before, a client that has pyarrow must `fill` the broker.
"""

from __future__ import annotations

import asyncio
import sys

import stentor

MANY = 5000  # several batches, far above what is sent as packed rows
HEAVY = {"aiohttp", "cryptography", "numpy", "pandas", "prometheus_client", "pyarrow", "rich", "typer"}


def fill(url: str) -> None:
    """A topic `arrow`, and the same compressed as `lz4`."""
    with stentor.connect(url) as client:
        for topic, compression in (("arrow", None), ("lz4", "lz4")):
            with client.producer(topic, compression=compression) as producer:
                for i in range(1000):
                    producer.send(b"value %d" % i, key=b"key%d" % i, headers={"h": b"%d" % i})


def rows(prefix: str) -> list[tuple[bytes, bytes | None]]:
    return [(f"{prefix}{i}".encode() * (i % 5), None if i % 7 == 0 else b"key%d" % i) for i in range(MANY)]


def synchronous(url: str) -> None:
    with stentor.connect(url) as client:
        receipt = client.publish("sync.one", "hello", key="k", headers={"a": b"1"})
        assert receipt.offset == 0
        (message,) = client.read("sync.one")
        assert (message.value, message.key, message.headers) == (b"hello", b"k", [("a", b"1")]), message
        wanted = rows("sync ")
        with client.producer("sync.many") as producer:
            for value, key in wanted[:20]:
                producer.send(value, key=key, headers={"ü": b"x"})
            for value, key in wanted[20:1000]:
                producer.send(value, key=key)
            producer.send_many([value for value, _ in wanted[1000:]], [key for _, key in wanted[1000:]])
        with client.subscribe("sync.many", start="earliest") as subscription:
            found = [subscription.get(timeout=10) for _ in wanted]
        assert [(message.value, message.key) for message in found] == wanted
        assert [bool(message.headers) for message in found] == [i < 20 for i in range(MANY)]
        orders = client.topic("sync.typed", type=dict)
        orders.publish({"a": 1})
        assert [message.value for message in orders.read()] == [{"a": 1}]


async def asynchronous(url: str) -> None:
    async with stentor.connect_async(url) as client:
        wanted = rows("async ")
        async with await client.subscribe("async.*", start="earliest") as subscription:
            async with await client.producer("async.many") as producer:
                await producer.send_many([value for value, _ in wanted], [key for _, key in wanted])
            found = [await subscription.get(timeout=10) for _ in wanted]
        assert [(message.value, message.key) for message in found] == wanted


def from_others(url: str) -> None:
    with stentor.connect(url) as client:
        found = [(message.value, message.key, message.headers) for message in client.read("arrow")]
        assert found == [(b"value %d" % i, b"key%d" % i, [("h", b"%d" % i)]) for i in range(1000)], found[:3]


def refused(what: str, call) -> None:
    told = None
    try:
        call()
    except stentor.MissingPackage as error:
        told = error
    assert told is not None, f"{what} needs pyarrow"
    assert "pyarrow" in str(told), told
    assert "pip install" in told.hint, told


def needs_arrow(url: str) -> None:
    with stentor.connect(url) as client:
        refused("to_arrow", lambda: client.read("arrow").to_arrow())
        refused("to_pandas", lambda: client.read("arrow").to_pandas())
        refused("batches", lambda: next(client.read("arrow").batches()))
        refused("offset_batches", lambda: next(client.read("arrow").offset_batches(appended_at=True)))
        refused("compression", lambda: client.producer("zipped", compression="lz4"))
        with client.producer("plain") as producer:
            refused("send_batch", lambda: producer.send_batch(object()))
        with client.subscribe("lz4", start="earliest") as subscription:
            for _ in range(2):  # it never goes on behind what it could not read
                refused("a compressed batch", lambda: subscription.get(timeout=10))


if __name__ == "__main__":
    address = sys.argv[1]
    synchronous(address)
    asyncio.run(asynchronous(address))
    from_others(address)
    needs_arrow(address)
    loaded = {name.split(".")[0] for name, module in sys.modules.items() if module is not None}
    assert not loaded & HEAVY, loaded & HEAVY
    print("ok")
