"""Says what to install when a framework is missing."""

from __future__ import annotations

from importlib import import_module

from stentor.errors import MissingPackage


def need(package: str, what: str, hint: str) -> None:
    """Raise MissingPackage if there is no such package."""
    try:
        import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise MissingPackage(f"{what} needs {package}, which is not installed.", hint=hint, object=package) from error
