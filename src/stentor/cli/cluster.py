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
Run a cluster on this machine, and break it.

Brokers, etcd and (with --haproxy) HAProxy run as real processes with free ports. Their names are b0, b1, …, etcd-0,
haproxy-0. It is for trying out and for tests: brokers of one machine die with it. These commands know only clusters on
this machine that `stentor cluster up` started; the brokers of any other are listed, drained and forgotten with `stentor
broker`.

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


Data = Annotated[Path, typer.Option("--data", metavar="DIR", help="Where the cluster lives; one cluster each.")]
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Which process: b0, etcd-0, haproxy-0.", autocompletion=_complete_name)
]
End = Annotated[
    str, typer.Argument(metavar="NAME", help="A broker, or clients, or etcd.", autocompletion=_complete_name)
]


@app.command(context_settings=options.CONTEXT_SETTINGS)
def up(
    brokers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=50,
            help="How many brokers. Without it: as many as DIR has, else 3.",
            show_default=False,
        ),
    ] = None,
    etcd: Annotated[
        int | None,
        typer.Option(
            metavar="1|3", help="How many members etcd has. Without it: as many as in DIR, else 1.", show_default=False
        ),
    ] = None,
    haproxy: Annotated[bool, typer.Option("--haproxy", help="Put an HAProxy before the brokers.")] = False,
    network: Annotated[
        bool, typer.Option("--network", help="Give each broker a network namespace, so that links can be cut; as root.")
    ] = False,
    zones: Annotated[str, typer.Option(metavar="A,B,…", help="Zones; brokers take turns.", show_default=False)] = "",
    port: Annotated[
        int,
        typer.Option(
            metavar="PORT",
            min=0,
            max=65_000,
            help="The first broker's port, the next for its HTTP, and so on; 0: free ones.",
        ),
    ] = 0,
    http: Annotated[
        bool, typer.Option("--http/--no-http", help="Whether brokers serve HTTP; status knows more with it.")
    ] = True,
    data: Data = _DEFAULT_DATA,
    detach: Annotated[bool, typer.Option("--detach", help="Return when it is ready, and leave it running.")] = False,
) -> None:
    """Start a cluster, in the foreground or with --detach.

    In the foreground it runs until Ctrl-C, with --detach until `stentor cluster down`. The data stays in DIR, and the
    next `up` goes on with it.
    """
    from stentor.cli import supervisor

    if haproxy and not http:
        raise InvalidArgument("HAProxy asks brokers over HTTP whether they are ready.", hint="Leave out --no-http.")
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
    once: Annotated[bool, typer.Option("--once", help="Print once and end, also on a terminal.")] = False,
    json: options.Json = False,
    data: Data = _DEFAULT_DATA,
) -> None:
    """Show who runs, and chains, epochs, commit points and lags.

    On a terminal it is shown anew every second, until Ctrl-C. The lag counts messages that a member has not on disk
    yet. A broker is ready, cut off (it hears neither the controller nor a majority), running (it does not answer),
    paused or dead.
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
    """Let a process stand still (SIGSTOP).

    Its connections stay open, and silent.
    """
    _tell(data, "pause", f"{name} stands still", name=name)


@app.command(context_settings=options.CONTEXT_SETTINGS)
def resume(name: Name, data: Data = _DEFAULT_DATA) -> None:
    """Let a paused process go on."""
    _tell(data, "resume", f"{name} goes on", name=name)


@app.command(context_settings=options.CONTEXT_SETTINGS)
def restart(name: Name, data: Data = _DEFAULT_DATA) -> None:
    """Start a process again, on the same data and ports.

    If it runs, it is stopped first, gracefully if it is a broker.
    """
    _tell(data, "restart", f"{name} runs", name=name)


@app.command(context_settings=options.CONTEXT_SETTINGS)
def cut(
    a: End,
    b: End,
    one_way: Annotated[bool, typer.Option("--one-way", help="Only what the first sends to the second.")] = False,
    data: Data = _DEFAULT_DATA,
) -> None:
    """Let nothing through between two of them.

    Between two brokers, or a broker and clients, or a broker and etcd. The cluster must have been started with
    --network.
    """
    _tell(data, "cut", f"cut {a} {'->' if one_way else '<->'} {b}", a=a, b=b, one_way=one_way)


@app.command(context_settings=options.CONTEXT_SETTINGS)
def heal(data: Data = _DEFAULT_DATA) -> None:
    """End all cuts."""
    _tell(data, "heal", "everyone hears everyone")


@app.command(context_settings=options.CONTEXT_SETTINGS)
def add(data: Data = _DEFAULT_DATA) -> None:
    """Start one more broker."""
    _tell(data, "add", "{answer} runs")


@app.command(context_settings=options.CONTEXT_SETTINGS)
def drain(
    name: Name,
    undo: Annotated[bool, typer.Option("--undo", help="Let it take replicas again.")] = False,
    data: Data = _DEFAULT_DATA,
) -> None:
    """Move all replicas away from a broker.

    It works on meanwhile; `stentor cluster status` shows how far it is.
    """
    said = f"{name} takes replicas again" if undo else f"{name} is being drained"
    _tell(data, "drain", said, name=name, draining=not undo)


@app.command(context_settings=options.CONTEXT_SETTINGS)
def down(data: Data = _DEFAULT_DATA) -> None:
    """Stop the cluster gracefully; its data stays."""
    from stentor.cli import supervisor

    supervisor.end(data)
    print("the cluster is down")
