"""`stentor broker`: the brokers of a cluster, seen, drained and forgotten; and their secret."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stentor.cli import options
from stentor.cli.output import print_json, print_table
from stentor.errors import InvalidArgument

if TYPE_CHECKING:
    from stentor.broker.config import BrokerConfig
    from stentor.wire.messages import BrokerState

app = options.make_app(invoke_without_command=True, help="List, drain and forget the brokers of a cluster.")

Name = Annotated[str, typer.Argument(metavar="ID", help="Id of the broker, as `stentor broker list` prints it.")]

_HEADINGS = ("BROKER", "ADDRESS", "ZONE", "VERSION", "STATE", "CONTROLLER", "DRAINING", "REPLICAS", "HEADS")


@app.callback()
def broker(context: typer.Context) -> None:
    """Print help when no command was given."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command("list", context_settings=options.CONTEXT_SETTINGS)
def list_brokers(
    json: options.Json = False,
    url: options.Url = None,
    timeout: options.Timeout = options.TIMEOUT_S,
) -> None:
    """List the brokers of the cluster, as one broker sees them.

    STATE is heard, silent (it sent nothing for a while) or refused (no process listens at its address). REPLICAS
    counts the partitions that a broker holds, HEADS those that it leads.
    """
    with options.connect(url, timeout, "broker list") as client:
        found = sorted(client.brokers(), key=lambda state: state.info.id)
    if json:
        print_json([_fields(state) for state in found])
    else:
        print_table(_HEADINGS, map(_row, found), right=("REPLICAS", "HEADS"))


def _fields(state: BrokerState) -> dict[str, Any]:
    """All of them, also where they are as usual: a program that waits for 0 replicas must find a 0."""
    import msgspec

    return {**msgspec.structs.asdict(state), "info": msgspec.structs.asdict(state.info)}


def _row(state: BrokerState) -> tuple[object, ...]:
    return (
        state.info.id,
        state.info.address,
        state.info.zone or "-",
        state.info.version or "-",
        state.view,
        "yes" if state.controller else "-",
        "yes" if state.draining else "-",
        state.replicas,
        state.heads,
    )


@app.command(context_settings=options.CONTEXT_SETTINGS)
def drain(name: Name, url: options.Url = None, timeout: options.Timeout = options.TIMEOUT_S) -> None:
    """Move all replicas away from a broker.

    The broker keeps working while its replicas move, and writes do not stop. `stentor broker list` shows how many
    replicas it still has. A replica stays if no other broker can take it.
    """
    with options.connect(url, timeout, "broker drain") as client:
        client.drain_broker(name)
    print(f"{name} is being drained")


@app.command(context_settings=options.CONTEXT_SETTINGS)
def undrain(name: Name, url: options.Url = None, timeout: options.Timeout = options.TIMEOUT_S) -> None:
    """Let a broker take replicas again."""
    with options.connect(url, timeout, "broker undrain") as client:
        client.drain_broker(name, draining=False)
    print(f"{name} takes replicas again")


@app.command(context_settings=options.CONTEXT_SETTINGS)
def forget(
    name: Name, yes: options.Yes = False, url: options.Url = None, timeout: options.Timeout = options.TIMEOUT_S
) -> None:
    """Remove a broker that is gone for good from the cluster.

    Until you forget it, every majority counts it as a dead broker. The command fails while the broker runs or is
    still a member of a chain.
    """
    if not yes:
        options.confirm(f"Forget broker {name}?", f"Forgetting {name}")
    with options.connect(url, timeout, "broker forget") as client:
        client.forget_broker(name)
    print(f"forgot {name}")


@app.command("rotate-secret", context_settings=options.CONTEXT_SETTINGS)
def rotate_secret(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="Read the etcd settings from this TOML file of a broker.",
            show_default=False,
        ),
    ] = None,
    coordination: Annotated[
        str | None,
        typer.Option("--coordination", metavar="URL", help="Address of the cluster's etcd.", show_default=False),
    ] = None,
) -> None:
    """Give the brokers of a cluster a new secret.

    Brokers use the secret to prove to each other that they belong to the cluster. This command changes it in etcd, so
    it needs a broker's settings for etcd, from its TOML file or its environment. Running brokers learn the new secret
    by themselves, and no connection ends. The old secret stays valid until the next rotation. To drop a secret that
    leaked, rotate twice, at least a minute apart.
    """
    import asyncio

    from stentor.broker.config import load_config

    settings = load_config({"coordination": coordination}, os.environ, config)
    if not settings.coordination:
        raise InvalidArgument(
            "The address of etcd is missing.",
            hint="Use --coordination etcd://host:2379, or --config with a broker's file.",
        )
    asyncio.run(_rotate(settings))
    print("the brokers have a new secret; the old one stays valid until the next rotation")


async def _rotate(settings: BrokerConfig) -> None:
    import time

    from stentor.broker.cluster.trust import rotate
    from stentor.broker.store_choice import open_cluster_store

    store = open_cluster_store(settings)
    try:
        await rotate(store, time.time_ns() // 1000)
    finally:
        await store.close()
