"""The systems, by name. Imported on demand: a role process pays only for the client library it measures."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.systems.base import System

CLUSTERS = ("stentor1", "stentor2", "stentor3", "nats3")
NAMES = ("stentor", "redis", "nats", "zeromq", "kafka", "copier", *CLUSTERS)


def system(name: str) -> System:
    """The driver of a system; its module offers it as `SYSTEM`."""
    if name in CLUSTERS:
        clusters: dict[str, System] = import_module("bench.systems.clusters").SYSTEMS
        return clusters[name]
    driver: System = import_module(f"bench.systems.{name}").SYSTEM
    return driver
