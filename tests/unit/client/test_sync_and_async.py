"""The sync and the async API are one: what one side has, takes, returns and says, the other does too.

Every class of the client whose name begins with `Async` is held against the one without. A call, an argument, a
default, a type or a sentence that is added to one side only fails here.
"""

import importlib
import inspect
import pkgutil
import re
import typing

import pytest

import stentor
import stentor.client
from stentor.client import async_client, options, sync_client
from stentor.client.group_core import join_group
from stentor.client.help import awaited
from stentor.client.producer_core import ProducerCore
from stentor.client.subscription_core import SubscriptionCore

ONE_SIDED = {"AsyncInbox": "threads have queue.SimpleQueue for it"}
DO_NOT_WAIT = {
    "events",
    "lag",
    "positions",
    "request_stream",
    "source",
    "statistics",
    "stop",
    "topic",
    "transaction",
    "use_up",
}
"""Calls that only look at what is there, or make something that calls later; an async client does not await them."""

ASKS_A_BROKER = {("AsyncAdmin", "statistics"), ("AsyncClient", "statistics")}
"""What is called the same, and waits."""

READS_A_COPY = {
    (kind, name)
    for kind in ("AsyncTable", "AsyncTypedTable")
    for name in (
        "entries",
        "entry",
        "get",
        "get_many",
        "holds",
        "items",
        "keys",
        "on_change",
        "on_resync",
        "to_arrow",
        "to_pandas",
        "values",
        "watch",
    )
}
"""What looks at a copy that is there; others of these names wait."""

AWAITED_FORMS = {"__aiter__": "__iter__", "__aenter__": "__enter__", "__aexit__": "__exit__"}
OPENED = {"OpeningRead": "History", "Connecting": "Client"}
DEFAULTS = {
    "GroupOptions": [join_group],
    "ProducerOptions": [ProducerCore],
    "SubscribeOptions": [SubscriptionCore, stentor.Client.read],
}
"""Where the options that one side takes behind `**` have their defaults."""


def client_classes():
    names = [module.name for module in pkgutil.iter_modules(stentor.client.__path__, "stentor.client.")]
    return {
        name: kind
        for module in names
        for name, kind in vars(importlib.import_module(module)).items()
        if inspect.isclass(kind) and kind.__module__ == module
    }


CLASSES = client_classes()
PAIRS = {
    name: (CLASSES.get(name.replace("Async", "", 1)), kind)
    for name, kind in sorted(CLASSES.items())
    if re.match(r"_?Async", name) and name not in ONE_SIDED
}
MEMBERS = [
    pytest.param(plain, awaitable, name, id=f"{pair}.{name}")
    for pair, (plain, awaitable) in PAIRS.items()
    for name in dir(awaitable)
    if not name.startswith("_")
]


def functions(kind):
    """What a class defines itself or has from ours, by name."""
    return {
        name: member
        for base in reversed(kind.__mro__)
        if base.__module__.startswith("stentor.")
        for name, member in vars(base).items()
        if inspect.isfunction(member) or isinstance(member, property)
    }


def public(kind):
    names = {AWAITED_FORMS.get(name, name) for name in functions(kind)}
    return {name for name in names if not name.startswith("_") or (name.startswith("__") and name != "__init__")}


def plain_type(text):
    """A type of the async side as the sync side has it."""
    text = re.sub(r"\bOpening\[(.*)\]$", r"\1", str(text))
    text = OPENED.get(text, text)
    return re.sub(r"\bAsync(?=[A-Z])", "", text)


def text_of(annotation):
    return getattr(annotation, "__forward_arg__", annotation)


def expanded(parameters):
    """Parameters with what comes behind `**` one by one."""
    for parameter in parameters:
        named = re.fullmatch(r"Unpack\[(\w+)\]", str(parameter.annotation))
        if parameter.kind is not parameter.VAR_KEYWORD or named is None:
            yield parameter
            continue
        known = [inspect.signature(place).parameters for place in DEFAULTS.get(named[1], [])]
        for name, annotation in getattr(options, named[1]).__annotations__.items():
            default = next((found[name].default for found in known if name in found), inspect.Parameter.empty)
            yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def described(function):
    """Everything about the signature of a function, in the words of the sync side."""
    signature = inspect.signature(function)
    found = [
        (parameter.name, parameter.kind.description, parameter.default, plain_type(text_of(parameter.annotation)))
        for parameter in expanded(signature.parameters.values())
    ]
    by_place = [one for one in found if one[1] != "keyword-only"]
    by_name = sorted((one for one in found if one[1] == "keyword-only"), key=lambda one: one[0])
    return {"by place": by_place, "by name": by_name, "returns": plain_type(signature.return_annotation)}


def sections(text):
    """What a docstring says, its arguments, its example."""
    said, _, example = inspect.cleandoc(text).partition("\n\nExample:\n")
    said, _, arguments = said.partition("\n\nArgs:\n")
    return said, arguments, example


def sentences(text):
    """Without those about `async` and `await`, which only one side can have."""
    told = re.sub(r"\bAsync(?=[A-Z])", "", " ".join(text.split()))
    return [each for each in re.split(r"(?<=\.) ", told) if "`async" not in each and "await" not in each]


def waits(function):
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return True
    return str(inspect.signature(function).return_annotation).startswith(("Opening", "Connecting", "AsyncIterator"))


def test_every_async_class_has_its_sync_form():
    assert {"AsyncClient", "AsyncProducer", "AsyncSubscription", "AsyncHistory", "AsyncTopic"} <= set(PAIRS)
    assert {name for name, (plain, _) in PAIRS.items() if plain is None} == set()
    assert set(ONE_SIDED) <= set(CLASSES), "these are gone; take them off the list"


def test_every_public_class_that_waits_has_its_async_form():
    """Whoever can be entered holds something open, and so has an end to wait for."""
    entered = {name for name in stentor.__all__ if hasattr(getattr(stentor, name), "__enter__")}
    assert {f"Async{name}" for name in entered} <= set(stentor.__all__)


@pytest.mark.parametrize("pair", PAIRS)
def test_both_sides_have_the_same_calls(pair):
    plain, awaitable = PAIRS[pair]
    assert public(plain) == public(awaitable)


@pytest.mark.parametrize(("plain", "awaitable", "name"), MEMBERS)
def test_both_sides_take_and_return_the_same(plain, awaitable, name):
    one, other = inspect.getattr_static(plain, name), inspect.getattr_static(awaitable, name)
    assert type(one) is type(other)
    if isinstance(one, property):
        one, other = one.fget, other.fget
    assert described(one) == described(other)
    assert list(map(described, typing.get_overloads(one))) == list(map(described, typing.get_overloads(other)))


@pytest.mark.parametrize(("plain", "awaitable", "name"), MEMBERS)
def test_both_sides_say_the_same(plain, awaitable, name):
    one, other = inspect.getattr_static(plain, name), inspect.getattr_static(awaitable, name)
    assert_same_words(one.__doc__ or "", other.__doc__ or "")


def assert_same_words(one, other):
    (said, arguments, example), (also_said, also_arguments, also_example) = sections(one), sections(other)
    assert sentences(said) == sentences(also_said)
    assert arguments == also_arguments
    assert awaited(example) == also_example


@pytest.mark.parametrize(("plain", "awaitable", "name"), MEMBERS)
def test_what_waits_is_awaited_and_nothing_else(plain, awaitable, name):
    assert not waits_as_function(inspect.getattr_static(plain, name))
    member = inspect.getattr_static(awaitable, name)
    place = (awaitable.__name__, name)
    looks_only = (name in DO_NOT_WAIT and place not in ASKS_A_BROKER) or place in READS_A_COPY
    assert waits_as_function(member) != (looks_only or isinstance(member, property))


def waits_as_function(member):
    return inspect.isfunction(member) and waits(member)


def test_connecting_is_the_same_too():
    one, other = sync_client.connect, async_client.connect_async
    assert described(one) == described(other)
    assert_same_words(one.__doc__, other.__doc__)
    assert waits(other)
    assert not waits(one)
