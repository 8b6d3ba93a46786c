"""How clients find brokers: one after the other, and not all clients at once."""

import asyncio
import gc
import random
import socket
import threading
from contextlib import contextmanager

import msgspec
import pytest
import uvloop

import stentor
from stentor import limits
from stentor.client import links as links_module
from stentor.client.link import BrokerLink
from stentor.client.links import Links
from stentor.errors import ConnectionFailed, DeadlineExceeded, NotReady, StentorError
from stentor.testing import broker
from stentor.wire import messages
from stentor.wire.frames import Kind
from stentor.wire.messages import BrokerInfo


@contextmanager
def silent():
    """The address of someone who takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield "{}:{}".format(*server.getsockname())


def refusing():
    """An address where nobody is."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return "{}:{}".format(*server.getsockname())


@pytest.fixture
def there(shared):
    """The address of a broker."""
    return shared.url.removeprefix("stentor://")


@pytest.fixture
def dialled(monkeypatch):
    """The ports that were tried, in order."""
    found = []
    dial = BrokerLink._dial

    async def counted(link, address):
        found.append(str(address))
        await dial(link, address)

    monkeypatch.setattr(BrokerLink, "_dial", counted)
    return found


def race(addresses):
    """Who wins."""

    async def run():
        links = Links("racer")
        try:
            link = await links.race(addresses, 5.0)
            link.close()
            return link.address
        finally:
            await links.close()

    return uvloop.run(run())


def test_a_broker_that_answers_is_the_only_one_asked(there, dialled, monkeypatch):
    monkeypatch.setattr(limits, "LINK_HEAD_START_S", 5.0)
    with silent() as other:
        assert race([there, other]) == there
    assert dialled == [there]


def test_a_silent_broker_has_a_head_start_only(there, dialled):
    with silent() as other:
        assert race([other, there]) == there
    # A client that another test has left behind may dial its own broker meanwhile.
    assert [address for address in dialled if address in (other, there)] == [other, there]


def test_a_broker_that_refuses_has_no_head_start(there, monkeypatch):
    monkeypatch.setattr(limits, "LINK_HEAD_START_S", 60.0)
    assert race([refusing(), there]) == there


def test_if_nobody_answers_the_last_one_says_why():
    with pytest.raises(ConnectionFailed):
        race([refusing(), refusing()])


@pytest.mark.parametrize(
    ("load", "seconds"), [(0, 0.0), (1, limits.RECONNECT_SPREAD_S), (10**6, limits.RECONNECT_DELAY_S_MAX)]
)
def test_the_more_clients_a_broker_had_the_longer_they_spread_over(load, seconds):
    async def run():
        links = Links("one of many")
        links.learned([BrokerInfo(id="b", cluster_id="c", version="1", address="b:1", load=load)])
        return links.spread_s("b")

    assert asyncio.run(run()) == seconds


def test_a_client_of_many_does_not_come_back_at_once(monkeypatch):
    """Its first attempt, for the home and for the head alike, is drawn from the whole spread."""
    drawn = []
    uniform = random.uniform

    def noted(low, high):
        drawn.append(high)
        return uniform(low, high)

    with broker() as local, local.client() as client:
        client.publish("orders", "before")
        links = client._core.links
        links.learned([msgspec.structs.replace(info, load=600) for info in links.brokers.values()])
        monkeypatch.setattr(random, "uniform", noted)
        local.stop()
        local.start()
        client.publish("orders", "after")
    assert 600 * limits.RECONNECT_SPREAD_S in drawn
    assert min(drawn) >= 600 * limits.RECONNECT_SPREAD_S


def test_a_broker_says_how_many_it_serves(shared):
    with shared.client(), shared.client() as client:
        (info,) = client._core.links.brokers.values()
        assert info.load >= 2


def test_a_client_that_stood_still_itself_does_not_leave_its_broker(shared):
    """C15: it asked nothing meanwhile, and has not read yet what came: the silence was its own."""
    with shared.client() as client:
        core, other = client._core, refusing()
        core.links.learned([BrokerInfo(id="other", cluster_id="c", version="1", address=other)])  # leaving is possible
        client.publish("orders", "before")
        stood_still = threading.Event()
        core.loop.call_soon_threadsafe(stand_still, core, stood_still)
        assert stood_still.wait(10)
        client.publish("orders", "after")
        assert core.links_made == 1


def stand_still(core, done):
    """In the client's loop, just after it heard from its broker."""
    core.link.look(impatient=True)
    threading.Event().wait(2 * limits.LINK_SILENCE_S)
    core.loop.call_later(2 * limits.LINK_WATCH_S, done.set)


async def never(*_):
    await asyncio.get_running_loop().create_future()


async def cut_off(*_):
    raise NotReady("This broker is cut off from its cluster.")


async def broken(*_):
    raise ConnectionFailed("The connection broke.")


def test_a_link_in_use_that_does_not_become_home_stays_in_use(shared, monkeypatch):
    """Deliveries on a slow line may be ahead of its answer."""

    async def run():
        async with stentor.connect_async(shared.url) as client:
            await client.publish("home", "before")
            core = client._core
            with monkeypatch.context() as patched:
                patched.setattr(BrokerLink, "request", never)
                with pytest.raises(DeadlineExceeded):
                    await core.home.adopt(core.link, 0.01)
            assert core.link.alive
            await client.publish("home", "after", timeout=10)
            assert core.links_made == 1

    uvloop.run(run())


@pytest.mark.parametrize("answer", [never, cut_off, broken])
def test_a_link_that_was_made_to_be_home_and_is_not_is_closed(shared, there, monkeypatch, answer):
    async def run():
        async with stentor.connect_async(shared.url) as client:
            core = client._core
            link = await core.links.race([there], 5.0)
            monkeypatch.setattr(BrokerLink, "request", answer)
            with pytest.raises(StentorError):
                await core.home.adopt(link, 0.01)
            return link.alive

    assert uvloop.run(run()) is False


def test_a_dead_link_is_not_handed_out_and_another_is_made(shared):
    async def run():
        async with stentor.connect_async(shared.url) as client:
            await client.publish("dead", "before")
            links, (name,) = client._core.links, client._core.links.brokers
            dead = links.existing(name)
            dead.close()
            assert links.existing(name) is None
            assert links.alive() == []
            await client.publish("dead", "after", timeout=10)
            return links.existing(name).alive

    assert uvloop.run(run())


@pytest.mark.parametrize("address", ["a..b:1", "a" * 70 + ":1", "127.0.0.1:port", "no-port-at-all", "a\0b:1"])
def test_an_address_that_is_none_is_one_where_nobody_is(address):
    """A broker may advertise it; whoever looks for a home goes on to the next one."""
    with pytest.raises(ConnectionFailed):
        asyncio.run(BrokerLink.open(address, "client", 5.0))


# --- through another broker ---------------------------------------------------------------------


class Stub:
    """As much of a link as `Links` needs."""

    def __init__(self, name, *, relayed):
        self.broker = BrokerInfo(id=name, cluster_id="c", version="1", address=f"{name}:1")
        self.address = self.broker.address
        self.alive, self.relayed, self.opened, self.gone = True, relayed, False, True

    def close(self):
        self.alive = False

    def give_way(self):
        self.close()

    def check(self):
        if not self.alive:
            raise ConnectionFailed("It broke.")

    def excuse(self, seconds):
        pass

    def look(self, *, impatient):
        pass


class Ways(Links):
    """Links whose attempts a test lets succeed or fail."""

    def __init__(self):
        super().__init__("tester")
        self.attempts = []  # (address, through it to whom), and the future of each

    async def _make(self, address, timeout, target=""):
        attempt = asyncio.get_running_loop().create_future()
        self.attempts.append((address, target, attempt))
        return await attempt

    async def attempt(self, number):
        await until(lambda: len(self.attempts) > number)
        return self.attempts[number]


async def until(condition):
    while not condition():  # noqa: ASYNC110 - the test's own deadline ends it
        await asyncio.sleep(0.001)


async def ways():
    """A client that is linked to one broker and wants to speak to another one."""
    links = Ways()
    near, far = Stub("near", relayed=False), Stub("far", relayed=False)
    links.learned([near.broker, far.broker])
    links.add(near)
    assert links.to("far") is None
    return links, far


def test_a_broker_that_is_slow_to_answer_is_spoken_to_through_another_one_meanwhile():
    async def run():
        links, far = await ways()
        *address, direct = await links.attempt(0)
        assert address == ["far:1", ""]
        *address, through = await links.attempt(1)
        assert address == ["near:1", "far"]
        relayed = Stub("far", relayed=True)
        through.set_result(relayed)
        await until(lambda: links.to("far") is relayed)
        direct.set_result(far)  # it was only slow
        await until(lambda: links.to("far") is far)
        assert not relayed.alive
        await links.close()

    asyncio.run(asyncio.wait_for(run(), 10))


def test_a_broker_that_refuses_at_once_is_not_looked_for_through_another_one_first(monkeypatch):
    monkeypatch.setattr(limits, "LINK_RELAY_S", 30.0)

    async def run():
        links, _ = await ways()
        (*_, direct) = await links.attempt(0)
        direct.set_exception(ConnectionFailed("Nobody is there."))
        *address, _ = await links.attempt(1)
        assert address == ["near:1", "far"]
        assert len(links.attempts) == 2
        await links.close()

    asyncio.run(asyncio.wait_for(run(), 10))


def test_a_client_that_closes_leaves_no_attempt_behind():
    async def run():
        links, _ = await ways()
        *_, direct = await links.attempt(0)
        *_, through = await links.attempt(1)
        through.set_result(Stub("far", relayed=True))
        await until(lambda: links.to("far") is not None)
        await links.close()
        assert direct.cancelled()

    asyncio.run(asyncio.wait_for(run(), 10))


def test_an_attempt_that_is_given_up_ends_both_ways():
    async def run():
        links, _ = await ways()
        *_, direct = await links.attempt(0)
        *_, through = await links.attempt(1)
        await links.close()
        assert direct.cancelled()
        assert through.cancelled()

    asyncio.run(asyncio.wait_for(run(), 10))


# --- links that break at once -------------------------------------------------------------------


def welcome():
    return messages.encode(
        messages.Welcome(version=1, broker=BrokerInfo(id="b", cluster_id="c", version="1", address=""))
    )


def test_a_link_that_breaks_in_the_moment_it_is_greeted_is_not_taken_for_one_that_works(monkeypatch):
    """Nobody is told any more that it broke, so whoever used it would wait for ever."""

    async def dial(link, *_):
        def greet_and_break():
            link.frame_received(Kind.WELCOME, 0, 0, memoryview(welcome()))
            link.disconnected(ConnectionResetError("reset"))

        asyncio.get_running_loop().call_soon(greet_and_break)

    monkeypatch.setattr(BrokerLink, "_dial", dial)
    with pytest.raises(ConnectionFailed):
        asyncio.run(BrokerLink.open("nowhere:1", "test", 5.0))


def test_a_link_that_breaks_before_it_is_taken_up_is_made_anew():
    async def story():
        links, far = await ways()
        far.alive = False
        (await links.attempt(0))[2].set_result(far)
        (await links.attempt(1))[2].set_result(Stub("far", relayed=False))
        await until(lambda: links.existing("far") is not None)

    asyncio.run(asyncio.wait_for(story(), 15))


def test_an_attempt_that_failed_while_it_was_given_up_is_told_to_nobody():
    told = []

    async def fail():
        raise ConnectionFailed("Nobody is there.")

    async def story():
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        attempt = asyncio.ensure_future(fail())
        await asyncio.wait([attempt])
        await links_module._abandon(attempt)

    asyncio.run(story())
    gc.collect()
    assert told == []
