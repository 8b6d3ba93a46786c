"""Handlers by name: how a process of its own finds the function that somebody gave."""

from __future__ import annotations

import importlib
import re
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stentor.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_RUN_NAME = "__stentor_worker__"  # not __main__: what a script does when it is run must not be done again


class HandlerName(msgspec.Struct, frozen=True):
    """Where a handler is."""

    module: str  # its name, or the path of a script
    function: str  # with dots, if it is in a class
    script: bool = False

    def __str__(self) -> str:
        return f"{self.module}:{self.function}"


def name_handler(handler: Callable[..., Any] | str) -> HandlerName:
    """The name under which another process finds a handler; InvalidArgument if none can."""
    if isinstance(handler, str):
        if not _NAME.fullmatch(handler):
            raise InvalidArgument(
                f"{handler!r} does not name a handler.", hint="Write module:function, such as billing.jobs:handle."
            )
        module, _, function = handler.partition(":")
        return HandlerName(module, function)
    module, function = getattr(handler, "__module__", None) or "", getattr(handler, "__qualname__", "")
    if not module or not function or "<" in function or _look_up(module, function) is not handler:
        raise InvalidArgument(
            f"A worker process cannot find {getattr(handler, '__qualname__', handler)!s}.",
            hint="Give a function that stands in a module by its name: no lambda, and none inside of another function.",
        )
    if module != "__main__":
        return HandlerName(module, function)
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return HandlerName(spec.name, function)
    path = getattr(main, "__file__", None)
    if path is None:
        raise InvalidArgument(
            f"A worker process cannot find {function}: it was typed in, and is in no file.",
            hint="Put it into a module, or use mode='thread'.",
        )
    return HandlerName(str(Path(path).absolute()), function, script=True)


def _look_up(module: str, function: str) -> object:
    found: Any = sys.modules.get(module)
    for part in function.split("."):
        found = getattr(found, part, None)
    return found


def load_handler(name: HandlerName) -> Callable[..., Any]:
    """Import it; InvalidArgument if that fails."""
    try:
        if name.script:
            found: Any = runpy.run_path(name.module, run_name=_RUN_NAME)
            parts = name.function.split(".")
            found = found[parts[0]]
            rest = parts[1:]
        else:
            found, rest = importlib.import_module(name.module), name.function.split(".")
        for part in rest:
            found = getattr(found, part)
    except Exception as error:
        raise InvalidArgument(
            f"The handler {name} cannot be imported: {type(error).__name__}: {error}.",
            hint="Check the name, and that the module can be imported from where the program runs.",
            object=str(name),
        ) from error
    if not callable(found):
        raise InvalidArgument(f"The handler {name} cannot be called; it is a {type(found).__name__}.", object=str(name))
    handler: Callable[..., Any] = found
    return handler
