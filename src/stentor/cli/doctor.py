"""`stentor doctor`: what is wrong, in plain words."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from stentor.cli import options
from stentor.cli.checkup import check_connection
from stentor.cli.failure import EXIT_ERROR
from stentor.cli.output import print_json
from stentor.cli.quantities import plural
from stentor.cli.topic_names import named_by_topic

if TYPE_CHECKING:
    from stentor.storage.model import Finding

app = options.make_app()

DEFAULT_DIRECTORY: Final = Path("data")

_MARKS: Final = {"ok": "ok     ", "warning": "warning", "error": "ERROR  "}


@app.command(context_settings=options.CONTEXT_SETTINGS)
def doctor(
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Check this data directory, without changing anything.", show_default=False),
    ] = None,
    json: options.Json = False,
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            metavar="URL",
            help="Check this broker: stentor://host:port, host:port, or several with commas.",
            show_default=False,
        ),
    ] = None,
    timeout: options.Timeout = 5.0,
) -> None:
    """Check a data directory and a connection, and say what is wrong.

    In a data directory, doctor reads and verifies every batch. It changes nothing, and a broker may run meanwhile.
    --data checks only the directory, --url only the connection. Without either, doctor checks the broker of
    STENTOR_URL. If that is not set, it checks the broker on this machine, and ./data if it exists. The exit code is 1
    if it finds an error.

    \b
    Examples:
      stentor doctor
      stentor doctor --data /var/lib/stentor
      stentor doctor --url stentor://broker.example:7440
    """
    findings: list[Finding] = []
    elsewhere = url is not None or bool(os.environ.get("STENTOR_URL"))
    if data is None and not elsewhere and DEFAULT_DIRECTORY.is_dir():
        findings += _check_directory(DEFAULT_DIRECTORY)
    if data is not None:
        findings += _check_directory(data)
    if data is None or url is not None:
        findings += check_connection(url, timeout)
    if json:
        print_json(findings)
    else:
        _print_findings(findings)
    if any(finding.severity == "error" for finding in findings):
        raise typer.Exit(EXIT_ERROR)


def _check_directory(path: Path) -> list[Finding]:
    from stentor.storage.inspect import inspect_directory

    return named_by_topic(inspect_directory(path), path)


def _print_findings(findings: list[Finding]) -> None:
    for finding in findings:
        print(f"{_MARKS[finding.severity]}  {finding.object}: {finding.message}")
        if finding.hint and finding.severity != "ok":
            print(f"{'':9}→ {finding.hint}")
    errors = sum(1 for finding in findings if finding.severity == "error")
    warnings = sum(1 for finding in findings if finding.severity == "warning")
    if errors or warnings:
        print(f"\n{plural(errors, 'error')}, {plural(warnings, 'warning')}")
    else:
        print("\nall is well")
