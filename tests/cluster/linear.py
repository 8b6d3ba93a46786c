"""Whether what clients saw of one key can be explained by one register: the check of linearizability per key.

Each operation has a call and an end, by a clock that all processes share, and an outcome. The check looks for an order
in which every operation takes effect at one moment between its call and its end, and in which each outcome is what the
register gives. It is Wing and Gong's search, with the memory of states that Lowe added. An operation whose outcome is
unknown may take effect at any moment after its call, or never.

The register holds what was written last, named by its value: every write has a value of its own. A version stands for
the write that got it, as acknowledgements and reads tell. So a condition on a version is one on what the
register holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

ABSENT = ""
"""What the register holds before the first write, and after a deletion."""


@dataclass(frozen=True)
class Operation:
    """What one client did to one key."""

    key: str
    kind: str  # "read", "put", "delete"
    called: float
    ended: float  # infinite if the outcome is unknown
    outcome: str  # "done", "refused", "unknown"
    value: str = ABSENT  # of a read: what was found
    version: int = -1  # of a read: of what was found; of a write that is done: its own
    condition: int | None = None  # the version at which the key must be; -1: absent


def explain(history: list[Operation]) -> str:
    """Why a history of several keys is impossible; empty if it is not."""
    for key in sorted({operation.key for operation in history}):
        operations = sorted((each for each in history if each.key == key), key=lambda each: each.called)
        wrong = _two_names(operations) or _search(operations)
        if wrong:
            return f"key {key}: {wrong}"
    return ""


def _versions(operations: list[Operation]) -> dict[int, str]:
    known = {-1: ABSENT}
    for each in operations:
        if each.outcome == "done" and each.kind != "delete" and each.version >= 0:
            known.setdefault(each.version, each.value)
    return known


def _two_names(operations: list[Operation]) -> str:
    """A version is of one value, wherever it is seen."""
    known = _versions(operations)
    for each in operations:
        if each.outcome == "done" and each.kind != "delete" and known[each.version] != each.value:
            return f"version {each.version} is {known[each.version]!r} and {each.value!r}"
    return ""


def _step(operation: Operation, held: str, versions: dict[int, str]) -> list[str]:
    """What the register may hold after an operation; nothing if its outcome is impossible there."""
    if operation.kind == "read":
        return [held] if operation.value == held else []
    wrote = operation.value if operation.kind == "put" else ABSENT
    holds = operation.condition is None or versions.get(operation.condition) == held
    if operation.outcome == "unknown":
        return [wrote if holds else held]
    if holds != (operation.outcome == "done"):
        return []
    return [wrote if holds else held]


def _search(operations: list[Operation]) -> str:
    versions = _versions(operations)
    certain = sum(1 << index for index, each in enumerate(operations) if each.outcome != "unknown")
    seen: set[tuple[int, str]] = set()
    waiting = [(0, ABSENT)]
    furthest, stuck = -1, ""
    while waiting:
        done, held = waiting.pop()
        if (done, held) in seen:
            continue
        seen.add((done, held))
        if done & certain == certain:
            return ""
        left = [index for index in range(len(operations)) if not done >> index & 1]
        before = min((operations[index].ended for index in left), default=inf)
        if (done & certain).bit_count() > furthest:
            furthest = (done & certain).bit_count()
            stuck = f"after {furthest} operations it holds {held!r}, and none of these can be next: " + "; ".join(
                str(operations[index]) for index in left[:8]
            )
        for index in left:
            if operations[index].called > before:
                break  # another one had ended by then
            waiting.extend((done | 1 << index, after) for after in _step(operations[index], held, versions))
    return stuck
