"""Names: services register where they are, others find them, and who dies is forgotten."""

import asyncio
import random
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

import stentor
from stentor.client.names import NAMES_TABLE
from stentor.client.table_leases import Leases
from stentor.errors import ConnectionFailed, DeadlineExceeded, InvalidArgument, KeyNotFound
from stentor.testing import broker

GRACE_S = 1.0


@pytest.fixture(autouse=True)
def no_names(shared):
    """Each test begins without names."""
    with shared.client() as client:
        for name in client.names.resolve_all():
            client.names.unregister(name)


@pytest.fixture
def other(shared):
    with shared.client() as connected:
        yield connected


def test_a_name_is_found_by_others_as_long_as_its_client_is_there(shared, client, wait_until):
    with shared.client() as service:
        service.names.register("billing/1", "10.0.0.5:80")
        assert client.names.resolve("billing/1") == "10.0.0.5:80"
        assert client.names.resolve("billing") == "10.0.0.5:80"
    wait_until(lambda: not client.names.resolve_all())
    with pytest.raises(KeyNotFound, match="No service is registered as billing"):
        client.names.resolve("billing")


def test_names_below_a_service_take_turns(client, other):
    for number in range(3):
        other.names.register(f"billing/{number}", f"10.0.0.{number}:80")
    other.names.register("bill", "not one of them")
    client.names.resolve_all()
    wanted = {f"10.0.0.{number}:80": 5 for number in range(3)}
    assert Counter(client.names.resolve("billing") for _ in range(15)) == wanted


def test_turns_go_on_when_services_come_and_go(client, other):
    for number in range(3):
        other.names.register(f"s/{number}", str(number))
    client.names.resolve_all()
    first = client.names.resolve("s")
    following = str((int(first) + 1) % 3)
    client.names.unregister(f"s/{first}")
    assert client.names.resolve("s") == following
    other.names.register(f"s/{first}", first)
    seen = {client.names.resolve("s", wait=5) for _ in range(6)}
    assert seen >= {following, str((int(first) + 2) % 3)}


@pytest.mark.parametrize("chance", range(3))
def test_the_first_choice_is_by_chance_so_that_clients_spread(client, other, monkeypatch, chance):
    monkeypatch.setattr(random.SystemRandom, "randrange", lambda _, count: chance if count == 3 else None)
    for number in range(3):
        other.names.register(f"s/{number}", str(number))
    assert client.names.resolve("s") == str(chance)


def test_all_names_of_a_service_and_all_there_are(client, other):
    other.names.register("billing/2", "b")
    other.names.register("billing/1", "a")
    other.names.register("billing2", "no")
    client.names.unregister("nobody")
    assert client.names.resolve_all("billing") == {"billing/1": "a", "billing/2": "b"}
    assert list(client.names.resolve_all()) == ["billing/1", "billing/2", "billing2"]
    assert client.names.resolve_all("other") == {}


def test_a_watch_tells_who_comes_moves_and_goes(shared, client):
    with client.names.watch("billing") as watch:
        with shared.client() as service:
            service.names.register("other/1", "x")
            service.names.register("billing/1", "a")
            service.names.register("billing/1", "b")
        seen = [watch.get(timeout=10) for _ in range(3)]
        with pytest.raises(DeadlineExceeded):
            watch.get(timeout=0.01)
    assert [(change.name, change.old, change.new) for change in seen] == [
        ("billing/1", None, "a"),
        ("billing/1", "a", "b"),
        ("billing/1", "b", None),
    ]
    assert not seen[-1].expired


def test_who_waits_for_a_service_gets_it_when_it_comes(client, other):
    with pytest.raises(KeyNotFound):
        client.names.resolve("late", wait=0.05)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(client.names.resolve, "late", wait=20)
        other.names.register("elsewhere", "x")
        other.names.register("late/1", "here")
        assert answer.result(20) == "here"


def test_a_name_that_stays_is_there_when_its_client_is_gone(shared, client):
    with shared.client() as service:
        service.names.register("fixed", "10.0.0.9:80", ephemeral=False)
    assert client.names.resolve("fixed") == "10.0.0.9:80"


def test_a_service_that_is_killed_is_forgotten_within_its_grace(shared, client, wait_until):
    program = (
        "import sys, stentor\n"
        "client = stentor.connect(sys.argv[1])\n"
        f"client.names.register('victim/1', 'x', grace={GRACE_S})\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program, shared.url]
    with (
        client.names.watch("victim") as watch,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
    ):
        assert process.stdout.readline() == b"ready\n"
        assert watch.get(timeout=10).new == "x"
        process.kill()
        change = watch.get(timeout=10 * GRACE_S)
        assert (change.new, change.expired) == (None, True)


def test_a_client_that_was_not_heard_for_too_long_registers_again(client, other, monkeypatch):
    heard, deaf = Leases.touch, True

    async def touch(leases, *args):
        if deaf:
            raise ConnectionFailed("not now")
        return await heard(leases, *args)

    monkeypatch.setattr(Leases, "touch", touch)
    with other.names.watch("s") as watch:
        client.names.register("s/1", "a", grace=GRACE_S)
        assert watch.get(timeout=10).new == "a"
        gone = watch.get(timeout=20)
        deaf = False
        assert (gone.new, gone.expired) == (None, True)
        assert watch.get(timeout=20).new == "a"
        with pytest.raises(DeadlineExceeded):
            watch.get(timeout=2 * GRACE_S)


def test_a_name_that_another_takes_is_the_others_and_nobody_fights(client, other, caplog):
    client.names.register("s/1", "first")
    with client.names.watch() as watch:
        other.names.register("s/1", "second")
        assert watch.get(timeout=10).new == "second"
        with pytest.raises(DeadlineExceeded):
            watch.get(timeout=0.2)
    assert "another client has taken the name s/1" in caplog.text


def test_closing_is_nobodys_doing(shared, caplog):
    with shared.client() as service:
        service.names.register("s/1", "x")
    assert "name s/1" not in caplog.text


def test_names_are_registered_again_when_somebody_deleted_their_table(wait_until):
    with broker() as local, local.client() as client, local.client() as other:
        client.names.register("s/1", "a")
        other.delete_topic(NAMES_TABLE)
        wait_until(lambda: client.names._core.copy.failure)
        assert client.names.resolve("s") == "a"
        assert other.names.resolve("s", wait=5) == "a"


@pytest.mark.parametrize("name", ["", "/a", "a/", "a//b", None, 7], ids=repr)
def test_what_is_no_name_is_refused(client, name):
    for call in (lambda: client.names.register(name, "x"), lambda: client.names.resolve(name)):
        with pytest.raises(InvalidArgument, match="no name of a service"):
            call()


@pytest.mark.parametrize("address", ["", None, b"bytes", 80], ids=repr)
def test_what_is_no_address_is_refused(client, address):
    with pytest.raises(InvalidArgument, match="An address is text"):
        client.names.register("a", address)


def test_the_same_for_async_code(shared):
    async def use():
        async with stentor.connect_async(shared.url) as client, client.names.watch("s") as watch:
            await client.names.register("s/1", "a", grace=5)
            assert await client.names.resolve("s", wait=5) == "a"
            assert await client.names.resolve_all() == {"s/1": "a"}
            await client.names.unregister("s/1")
            assert [(await watch.get(timeout=10)).new for _ in range(2)] == ["a", None]
            with pytest.raises(KeyNotFound):
                await client.names.resolve("s")

    asyncio.run(use())
