"""Durations, sizes and counts as people write and read them."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from stentor.errors import InvalidArgument

_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_BYTES: Final = {
    "": 1,
    "b": 1,
    **{unit: 1000**power for power, unit in enumerate(("kb", "mb", "gb", "tb"), 1)},
    **{unit: 1024**power for power, unit in enumerate(("kib", "mib", "gib", "tib"), 1)},
    **{unit: 1024**power for power, unit in enumerate("kmgt", 1)},
}

# Not compiled here: help does not need them.
_DURATION_PART: Final = r"(\d+(?:\.\d+)?)\s*(ms|min|[smhdw])"
_DURATION: Final = rf"(?:{_DURATION_PART}\s*)+"
_SIZE: Final = r"(\d+(?:\.\d+)?)\s*([a-z]*)"


def read_duration(text: str) -> timedelta | None:
    """`90s`, `1h30m`, `7d` as a duration; None if the text is not one or is beyond what can be told."""
    text = text.strip().lower()
    if not re.fullmatch(_DURATION, text, re.ASCII):
        return None
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in re.findall(_DURATION_PART, text, re.ASCII))
    try:
        return timedelta(seconds=seconds)
    except OverflowError:
        return None


def parse_seconds(text: str, option: str) -> int:
    """A duration option in whole seconds; a bare number is seconds."""
    duration = timedelta(seconds=int(text)) if text.isascii() and text.isdigit() else read_duration(text)
    if duration is None or duration < timedelta(seconds=1):
        raise InvalidArgument(
            f"{option} {text!r} is not a duration of at least a second.", hint="Write it like 90s, 15m, 12h or 7d."
        )
    return int(duration.total_seconds())


def parse_bytes(text: str, option: str) -> int:
    """A size option in bytes: 1048576, 64KiB, 10GB."""
    match = re.fullmatch(_SIZE, text.strip().lower(), re.ASCII)
    unit = match and _BYTES.get(match[2])
    if not match or not unit:
        raise InvalidArgument(f"{option} {text!r} is not a size.", hint="Write it like 1048576, 64KiB, 500MB or 10GB.")
    return int(float(match[1]) * unit)


def show_bytes(count: float) -> str:
    """A size for people: three digits and a unit of 1,024."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def show_seconds(seconds: float) -> str:
    """A duration for people: its two largest units."""
    if seconds < 60:
        return f"{seconds:.1f}s" if seconds < 10 else f"{seconds:.0f}s"
    parts: list[str] = []
    left = int(seconds)
    for unit in ("d", "h", "m", "s"):
        size = int(_SECONDS[unit])
        if left >= size or parts:
            parts.append(f"{left // size}{unit}")
            left %= size
    return "".join(part for part in parts[:2] if not part.startswith("0")) or "0s"


def plural(count: int, noun: str) -> str:
    """`1 message`, `1,000 messages`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
