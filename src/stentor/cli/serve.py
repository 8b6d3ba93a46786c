"""`stentor serve`: run a broker.

The options are made from the settings of the broker's configuration, so that flag, environment variable and
TOML key have one name, one meaning and one default.
"""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from stentor.broker.config import BrokerConfig, described_settings, load_config
from stentor.cli import options

if TYPE_CHECKING:
    from stentor import BrokerInfo

app = options.make_app()

_HELP = """\
Run a broker until it is stopped.

When the broker is ready, it prints one line with its address on standard output. Logs go to standard error.
SIGTERM and Ctrl-C stop it gracefully: everything it acknowledged is on disk.

Every option is also an environment variable (--http-port is STENTOR_HTTP_PORT) and a key of the TOML file
(http_port = 7441). A flag wins over a variable, and a variable over the file.

\b
Examples:
  stentor serve
  stentor serve --data /var/lib/stentor --host 0.0.0.0 --retention-age-s 604800
  stentor serve --config stentor.toml --log-format json
"""


def serve(config: Path | None, **flags: Any) -> None:
    """Run a broker with the settings of flags, environment and file."""
    from stentor.node import run

    settings = load_config(flags, os.environ, config)
    run(settings, lambda info: _announce(info, settings))


def _announce(info: BrokerInfo, settings: BrokerConfig) -> None:
    """The one line that scripts and people wait for."""
    http = f"  http://{info.http_address}" if info.http_address else ""
    print(f"stentor ready on stentor://{info.address}{http}  data {settings.data_directory}", flush=True)


def _option(name: str, default: Any, meaning: str) -> inspect.Parameter:
    """A flag for one setting; it stays None when not given, so that environment and file can speak."""
    flag = "--" + name.replace("_", "-")
    text = meaning if default == "" else f"{meaning}  [default: {_shown(default)}]"
    if isinstance(default, bool):
        kind: Any = Annotated[bool | None, typer.Option(f"{flag}/--no-{flag[2:]}", help=text, show_default=False)]
    else:
        names = ("--data", flag) if name == "data_directory" else (flag,)
        kind = Annotated[
            str | None, typer.Option(*names, metavar=_metavar(name, default), help=text, show_default=False)
        ]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)


def _shown(default: Any) -> str:
    if isinstance(default, bool):
        return "on" if default else "off"
    return "none" if default is None else str(default)


def _metavar(name: str, default: Any) -> str:
    """What a setting takes: its choices, or what the last word of its name says."""
    kind = get_type_hints(BrokerConfig)[name]
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    words = {"port": "PORT", "host": "HOST", "bytes": "BYTES", "s": "SECONDS", "directory": "DIR"}
    return words.get(name.rpartition("_")[2], "N" if isinstance(default, int) else "TEXT")


def _signature() -> inspect.Signature:
    file = Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="Read settings from this TOML file.", show_default=False),
    ]
    config = inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=file)
    return inspect.Signature([config, *(_option(*setting) for setting in described_settings())])


def _command() -> Any:
    """The command with its options, as typer reads them from a signature."""

    def command(**flags: Any) -> None:
        serve(flags.pop("config"), **flags)

    signature = _signature()
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {name: each.annotation for name, each in signature.parameters.items()}
    return command


app.command("serve", help=_HELP, context_settings=options.CONTEXT_SETTINGS)(_command())
