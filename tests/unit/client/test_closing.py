"""The end of clients and producers: nobody is left waiting, and what was sent gets out."""

import asyncio
import multiprocessing
import subprocess
import sys
import threading

import pytest

import stentor
from stentor.client.link import BrokerLink
from stentor.testing import broker

LETS_ITS_CLIENT_GO = """
import gc, sys, stentor

def producer_of(url):
    return stentor.connect(url).producer("let.go")

producer = producer_of(sys.argv[1])
gc.collect()
for _ in range(100_000):
    producer.send(bytes(100))
"""


def test_a_call_that_waits_is_released_when_another_thread_closes_the_client(shared, monkeypatch):
    asked, outcome = threading.Event(), []

    async def never(*_):
        asked.set()
        await asyncio.get_running_loop().create_future()

    def ask():
        try:
            outcome.append(client.topics())
        except stentor.StentorError as error:
            outcome.append(error)

    client = shared.client()
    monkeypatch.setattr(BrokerLink, "request", never)
    waits = threading.Thread(target=ask, daemon=True)
    waits.start()
    assert asked.wait(10)
    client.close()
    waits.join(10)
    assert [type(found) for found in outcome] == [stentor.Closed]


def test_calls_that_come_while_a_client_closes_end(shared):
    """Whatever comes first: each of them is answered, or told that the client is closed."""
    client = shared.client()
    client.create_topic("racing", exist_ok=True)
    producer = client.producer("racing")
    ended = []

    def call():
        while True:
            try:
                producer.flush()
                client.offsets("racing")
            except stentor.StentorError as error:
                ended.append(type(error))
                return

    threads = [threading.Thread(target=call, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    client.close()
    for thread in threads:
        thread.join(10)
    assert ended == [stentor.Closed] * 4


def test_closing_a_producer_waits_for_what_was_sent_while_it_flushed(shared):
    heard = []

    def last(receipt, error):
        heard.append((receipt, error))

    async def work():
        async with stentor.connect_async(shared.url) as client:
            producer = await client.producer("meanwhile")
            await producer.send("first", on_delivery=lambda *_: producer._offer("last", None, None, None, None, last))
            await producer.close()
            with pytest.raises(stentor.Closed):
                await producer.send("after")

    asyncio.run(work())
    ((receipt, error),) = heard
    assert error is None
    assert receipt.offset == 1


def _close(producer):
    producer.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_closing_a_producer_that_was_carried_over_a_fork_does_nothing(client):
    producer = client.producer("forked.producer")
    child = multiprocessing.get_context("fork").Process(target=_close, args=(producer,))
    child.start()
    child.join(20)
    hangs = child.is_alive()
    child.kill()
    assert not hangs
    assert child.exitcode == 0
    producer.send("the parent's own")
    producer.close()


def test_closing_an_async_producer_that_was_carried_over_a_fork_does_nothing_either(shared):
    async def work():
        async with stentor.connect_async(shared.url) as client:
            producer = await client.producer("forked.async")
            await producer.send("the parent's")
            client._core.forked = True  # as it is in the child
            await producer.close()
            closed = producer._core.closed
            client._core.forked = False
            return closed

    assert asyncio.run(work()) is False


def test_what_a_producer_sent_gets_out_at_exit_although_its_client_was_let_go():
    with broker() as local, local.client() as client:
        client.create_topic("let.go")
        subprocess.run([sys.executable, "-c", LETS_ITS_CLIENT_GO, local.url], check=True, timeout=60)
        assert client.offsets("let.go") == {0: 100_000}
