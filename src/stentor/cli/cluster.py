"""`stentor cluster`: a whole cluster on this machine, to try out and to break."""

from __future__ import annotations

import contextlib
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from stentor.cli import options
from stentor.cli.failure import EXIT_ERROR, complain
from stentor.errors import InvalidArgument

if TYPE_CHECKING:
    import subprocess

_BROKERS: Final = 3
_REFRESH_S: Final = 1.0
_DEFAULT_DATA: Final = Path("stentor-cluster")

app = options.make_app(
    help="""\
Run a cluster on this machine, to try it out and to break it.

Brokers, etcd and (with --haproxy) HAProxy run as real processes on free ports. Their names are b0, b1, …, etcd-0,
haproxy-0. Do not use it in production: all brokers run on one machine and fail with it. These commands work only on
clusters that `stentor cluster up` started on this machine. For any other cluster, use `stentor broker`.

\b
Examples:
  stentor cluster up --brokers 3 --detach
  stentor cluster status
  stentor cluster kill b0
  stentor cluster restart b0
  stentor cluster down
""",
    no_args_is_help=False,
    invoke_without_command=True,
)


@app.callback()
def cluster(context: typer.Context) -> None:
    """Print help when no command was given."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def _complete_name(context: typer.Context, incomplete: str) -> list[str]:
    """The processes of the cluster that the command line is about."""
    from stentor.cli import supervisor
    from stentor.errors import StentorError

    with contextlib.suppress(StentorError, OSError, KeyError):
        state = supervisor.find(Path(context.params.get("data") or _DEFAULT_DATA))
        names = [each["name"] for kind in ("brokers", "etcd", "haproxy") for each in state[kind]]
        return [name for name in names if name.startswith(incomplete)]
    return []


Data = Annotated[
    Path, typer.Option("--data", metavar="DIR", help="Directory of the cluster. Each cluster needs its own.")
]
Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Name of the process: b0, etcd-0, haproxy-0.", autocompletion=_complete_name),
]
End = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of a broker, or clients, or etcd.", autocompletion=_complete_name)
]
Brokers = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        max=50,
        help="Number of brokers. Default: as many as DIR has, or 3 if it is new.",
        show_default=False,
    ),
]
Etcd = Annotated[
    int | None,
    typer.Option(
        metavar="1|3",
        help="Number of etcd members. Default: as many as DIR has, or 1 if it is new.",
        show_default=False,
    ),
]
Port = Annotated[
    int,
    typer.Option(
        metavar="PORT",
        min=0,
        max=65_000,
        help="Port of the first broker; its HTTP and the other brokers take the next ones. 0 means free ports.",
    ),
]
Network = Annotated[
    bool,
    typer.Option("--network", help="Give each broker a network namespace, so that links can be cut. Needs root."),
]
Zones = Annotated[
    str, typer.Option(metavar="A,B,…", help="Assign these zones to the brokers in turn.", show_default=False)
]


@app.command(context_settings=options.CONTEXT_SETTINGS)
def up(
    brokers: Brokers = None,
    etcd: Etcd = None,
    haproxy: Annotated[bool, typer.Option("--haproxy", help="Put HAProxy in front of the brokers.")] = False,
    network: Network = False,
    zones: Zones = "",
    port: Port = 0,
    http: Annotated[
        bool, typer.Option("--http/--no-http", help="Whether brokers serve HTTP. Without it, status shows less.")
    ] = True,
    data: Data = _DEFAULT_DATA,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return when the cluster is ready, and leave it running.")
    ] = False,
) -> None:
    """Start a cluster, in the foreground or with --detach.

    In the foreground the cluster runs until Ctrl-C, with --detach until `stentor cluster down`. The data stays in DIR,
    and the next `up` continues with it.
    """
    from stentor.cli import supervisor

    if haproxy and not http:
        raise InvalidArgument(
            "--haproxy needs HTTP: HAProxy asks brokers over HTTP whether they are ready.", hint="Leave out --no-http."
        )
    settings: dict[str, Any] = {
        "brokers": brokers or len(list(data.glob("b[0-9]*/"))) or _BROKERS,
        "etcd": len(list(data.glob("etcd/etcd-*/"))) or 1 if etcd is None else etcd,
        "haproxy": int(haproxy),
        "network": network,
        "zones": [zone.strip() for zone in zones.split(",") if zone.strip()],
        "port": port,
        "settings": {"http": http},
    }
    started = supervisor.start(data, settings, detach=detach)
    _announce(started.state, data, detach=detach)
    if not detach:
        _stay(started.process)


def _announce(state: dict[str, Any], data: Path, *, detach: bool) -> None:
    if state.get("warning"):
        complain(state["warning"])
    print(f"stentor cluster ready on {state['url']}")
    for kind in ("brokers", "etcd", "haproxy"):
        for each in state[kind]:
            http = f"  http://{each['http_address']}" if each.get("http_address") else ""
            print(f"  {each['name']:<10} pid {each['pid']:<8} {each['address']}{http}")
    where = "" if data == _DEFAULT_DATA else f" --data {data}"
    print(f"use it:   export STENTOR_URL={state['url']}")
    print(f"stop it:  stentor cluster down{where}" + ("" if detach else "   or Ctrl-C"), flush=True)


def _stay(process: subprocess.Popen[bytes]) -> None:
    """Until the cluster ends; SIGTERM and Ctrl-C end it."""

    def stop(*_: object) -> None:
        process.send_signal(signal.SIGTERM)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    if process.wait():
        complain("The cluster ended by itself; see cluster.log in its directory.")
        raise typer.Exit(EXIT_ERROR)


@app.command(context_settings=options.CONTEXT_SETTINGS)
def status(
    once: Annotated[bool, typer.Option("--once", help="Print the status once, also on a terminal.")] = False,
    json: options.Json = False,
    data: Data = _DEFAULT_DATA,
) -> None:
    """Show processes, chains, epochs, commit points and lags.

    On a terminal the status is updated every second, until Ctrl-C. The lag counts messages that a member does not have
    on disk yet. A broker is ready, cut off (it hears neither the controller nor a majority), running (it runs but does
    not answer), paused or dead.
    """
    from stentor.cli import cluster_status
    from stentor.cli.output import print_json

    found = cluster_status.collect(data)
    if json:
        print_json(found)
    elif once or not sys.stdout.isatty():
        print("\n".join(cluster_status.lines(found)))
    else:
        _watch(data, found)


def _watch(data: Path, found: dict[str, Any]) -> None:
    import time

    from rich.live import Live

    from stentor.cli import cluster_status

    with Live(cluster_status.picture(found), auto_refresh=False) as live:
        while True:
            time.sleep(_REFRESH_S)
            live.update(cluster_status.picture(cluster_status.collect(data)), refresh=True)


def _tell(data: Path, request: str, said: str, **arguments: Any) -> Any:
    from stentor.cli import supervisor

    answer = supervisor.ask(data, request, **arguments)
    print(said.format(answer=answer))
    return answer


@app.command(context_settings=options.CONTEXT_SETTINGS)
def kill(name: Name, data: Data = _DEFAULT_DATA) -> None:
    """End a process at once, as a power cut would."""
    _tell(data, "kill", f"{name} is dead", name=name)


@app.command(context_settings=options.CONTEXT_SETTINGS)
def pause(name: Name, data: Data = _DEFAULT_DATA) -> None:
    """Pause a process (SIGSTOP).

    Its connections stay open, but nothing comes through them.
    """
    _tell(data, "pause", f"{name} is paused", name=name)


@app.command(context_settings=options.CONTEXT_SETTINGS)
def resume(name: Name, data: Data = _DEFAULT_DATA) -> None:
    """Continue a paused process."""
    _tell(data, "resume", f"{name} runs again", name=name)


@app.command(context_settings=options.CONTEXT_SETTINGS)
def restart(name: Name, data: Data = _DEFAULT_DATA) -> None:
    """Start a process again, on the same data and ports.

    A process that runs is stopped first; a broker is stopped gracefully.
    """
    _tell(data, "restart", f"{name} runs", name=name)


@app.command(context_settings=options.CONTEXT_SETTINGS)
def cut(
    a: End,
    b: End,
    one_way: Annotated[bool, typer.Option("--one-way", help="Cut only what the first sends to the second.")] = False,
    data: Data = _DEFAULT_DATA,
) -> None:
    """Cut the network between two brokers, or between a broker and clients or etcd.

    The cluster must have been started with --network.
    """
    _tell(data, "cut", f"cut {a} {'->' if one_way else '<->'} {b}", a=a, b=b, one_way=one_way)


@app.command(context_settings=options.CONTEXT_SETTINGS)
def heal(data: Data = _DEFAULT_DATA) -> None:
    """End all cuts."""
    _tell(data, "heal", "all cuts are ended")


@app.command(context_settings=options.CONTEXT_SETTINGS)
def add(data: Data = _DEFAULT_DATA) -> None:
    """Start one more broker."""
    _tell(data, "add", "{answer} runs")


@app.command(context_settings=options.CONTEXT_SETTINGS)
def drain(
    name: Name,
    undo: Annotated[bool, typer.Option("--undo", help="Let the broker take replicas again.")] = False,
    data: Data = _DEFAULT_DATA,
) -> None:
    """Move all replicas away from a broker.

    The broker keeps working meanwhile. `stentor cluster status` shows the progress.
    """
    said = f"{name} takes replicas again" if undo else f"{name} is being drained"
    _tell(data, "drain", said, name=name, draining=not undo)


@app.command(context_settings=options.CONTEXT_SETTINGS)
def down(data: Data = _DEFAULT_DATA) -> None:
    """Stop the cluster gracefully; its data stays."""
    from stentor.cli import supervisor

    supervisor.end(data)
    print("the cluster is down")
