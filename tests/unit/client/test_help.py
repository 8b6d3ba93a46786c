"""`help()` says everything about what applications call, and its examples run."""

import asyncio
import importlib
import inspect
import json
import re
import textwrap
from datetime import timedelta

import pyarrow as pa
import pytest

import stentor
from stentor import selectors
from stentor.client.help import MEANINGS, OWN_MEANINGS, arguments

PAIRS = (("Client", "AsyncClient"), ("Producer", "AsyncProducer"), ("Subscription", "AsyncSubscription"),
         ("History", "AsyncHistory"), ("Table", "AsyncTable"), ("TableWatch", "AsyncTableWatch"),
         ("Names", "AsyncNames"), ("Group", "AsyncGroup"), ("Queue", "AsyncQueue"))  # fmt: skip
KINDS = {name: pair[0] for pair in PAIRS for name in pair}
RULE = re.compile(r"\b[CDEKS]\d{1,2}a?\b")
NEEDS_NO_EXAMPLE = {"close"}
PROPERTIES = {
    "assignment",
    "compacted",
    "dead_letter_topic",
    "member",
    "name",
    "names",
    "paused",
    "sequence",
    "session",
    "state",
    "topic",
    "topics",
}
NEEDS_A_CLUSTER = {"drain_broker", "forget_broker", "recover_partition"}


def public_members(cls):
    return {name: getattr(cls, name) for name in dir(cls) if not name.startswith("_")}


METHODS = [
    pytest.param(kind, name, id=f"{kind}.{name}")
    for kind in KINDS
    for name, member in public_members(getattr(stentor, kind)).items()
    if inspect.isfunction(member)
]


def section(text, title):
    """The lines below a title of a docstring."""
    found = re.search(rf"^{title}:\n((?:    .*\n|\n)+)", inspect.cleandoc(text) + "\n", re.MULTILINE)
    return "" if found is None else textwrap.dedent(found[1]).strip()


def told_arguments(text):
    return dict(re.findall(r"^(\w+): (\S.*)$", section(text, "Args"), re.MULTILINE))


@pytest.mark.parametrize(("kind", "name"), METHODS)
def test_help_tells_the_meaning_of_every_argument(kind, name):
    method = getattr(getattr(stentor, kind), name)
    told = told_arguments(method.__doc__)
    named = [
        argument.name
        for argument in inspect.signature(method).parameters.values()
        if argument.name != "self" and argument.kind is not argument.VAR_KEYWORD
    ]
    assert [argument for argument in told if argument in named] == named
    assert list(told) == arguments(method, f"{KINDS[kind]}.{name}"), "also what comes behind **"


@pytest.mark.parametrize(("plain", "awaited"), PAIRS)
def test_both_forms_take_and_tell_the_same(plain, awaited):
    one, other = getattr(stentor, plain), getattr(stentor, awaited)
    assert public_members(one).keys() == public_members(other).keys()
    for name, member in public_members(one).items():
        if inspect.isfunction(member):
            assert told_arguments(member.__doc__) == told_arguments(getattr(other, name).__doc__), name


@pytest.mark.parametrize("name", ["connect", "connect_async"])
def test_connecting_is_explained(name):
    function = getattr(stentor, name)
    assert list(told_arguments(function.__doc__)) == list(inspect.signature(function).parameters)
    assert section(function.__doc__, "Example")


@pytest.mark.parametrize("kind", KINDS)
def test_only_what_is_documented_is_public(kind):
    members = public_members(getattr(stentor, kind))
    assert [name for name, member in members.items() if not (member.__doc__ or "").strip()] == []
    assert {name for name, member in members.items() if not inspect.isfunction(member)} <= PROPERTIES


def test_nothing_else_is_public_on_the_objects_either(shared, client):
    with client.subscribe("help.objects") as subscription, client.producer("help.objects") as producer:
        for found in (client, subscription, producer):
            assert [name for name in vars(found) if not name.startswith("_")] == []


def test_topics_take_the_settings_that_help_tells():
    settings = set(stentor.TopicSettings.__struct_fields__)
    assert settings <= set(told_arguments(stentor.Client.create_topic.__doc__))
    assert settings - {"partitions", "kind"} <= set(told_arguments(stentor.Client.alter_topic.__doc__))


def test_no_meaning_is_told_of_what_is_not_there():
    used = {name for kind, method in (case.values for case in METHODS)
            for name in told_arguments(getattr(getattr(stentor, kind), method).__doc__)}  # fmt: skip
    used |= set(told_arguments(stentor.connect.__doc__))
    assert set(MEANINGS) - used == set()
    for place, own in OWN_MEANINGS.items():
        found = stentor
        for part in place.split("."):
            found = getattr(found, part)
        assert set(own) <= set(told_arguments(found.__doc__)), place


def test_public_texts_cite_no_rules_of_the_design():
    texts = {}
    for module in ("stentor", "stentor.errors", "stentor.selectors"):
        texts[module] = importlib.import_module(module).__doc__
    for name in stentor.__all__:
        found = getattr(stentor, name)
        texts[name] = found.__doc__
        if inspect.isclass(found):
            texts.update({f"{name}.{member}": value.__doc__ for member, value in public_members(found).items()})
    texts.update({name: value.__doc__ for name, value in vars(selectors).items() if inspect.isfunction(value)})
    assert {name: text for name, text in texts.items() if text and RULE.search(text)} == {}


# --- examples -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shop(shared):
    with shared.client() as client:
        for number in range(3):
            client.publish("orders.eu", f"order {number}", key=str(number))
        client.create_topic("config", kind="table", exist_ok=True)
    return shared


def names(**more):
    return {
        "stentor": stentor,
        "json": json,
        "timedelta": timedelta,
        "pa": pa,
        "pyarrow": pa,
        "print": lambda *_: None,
        "input": lambda _: "",
        **more,
    }


def optional(example):
    for package in ("pandas", "polars"):
        if package in example:
            pytest.importorskip(package)


@pytest.mark.parametrize(("kind", "name"), METHODS)
def test_every_method_has_an_example_that_runs(kind, name, shop, monkeypatch):
    example = section(getattr(getattr(stentor, kind), name).__doc__, "Example")
    if name in NEEDS_NO_EXAMPLE:
        return
    assert f".{name}(" in example
    optional(example)
    asynchronous = kind.startswith("Async")
    if asynchronous:
        example = "async def main(client):\n" + "\n".join(f"    {line}" for line in example.splitlines())
    code = compile(example, f"{kind}.{name}", "exec")
    if name in NEEDS_A_CLUSTER:
        return
    if not asynchronous:
        with shop.client() as client:
            exec(code, names(client=client))
        return

    async def run():
        async with stentor.connect_async(shop.url) as client:
            space = names()
            exec(code, space)
            await space["main"](client)

    asyncio.run(run())


def test_the_examples_of_connecting_run(shop):
    def adapted(text):
        return section(text, "Example").replace("stentor://localhost:7440", shop.url)

    exec(adapted(stentor.connect.__doc__), names())
    lines = "\n".join(f"    {line}" for line in adapted(stentor.connect_async.__doc__).splitlines())
    space = names()
    exec(f"async def main():\n{lines}", space)
    asyncio.run(space["main"]())
