"""Write the parts of the documents that are made from the code, or say which of them are out of date.

A made part stands between `<!-- made: NAME -->` and `<!-- /made -->`; everything around it is written by hand.

    python scripts/make_docs.py            write
    python scripts/make_docs.py --check    change nothing, exit 1 if something is out of date
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "scripts"), str(ROOT)]

if TYPE_CHECKING:
    from collections.abc import Callable

RULE: Final = re.compile(r" \([A-Z]\d+a?(?:, [A-Z]\d+a?)*\)")
PART: Final = re.compile(r"(<!-- made: (\w+) -->\n).*?(<!-- /made -->)", re.DOTALL)

ON_THE_WIRE: Final = (
    "FRAME_BODY_BYTES_MAX", "CONTROL_BODY_BYTES_MAX", "UNGREETED_BODY_BYTES_MAX", "BATCH_BYTES_MAX",
    "BATCH_MESSAGES_MAX", "BATCH_EXPANDED_BYTES_MAX", "BATCH_HEADERS_MAX", "ROWS_ENCODING_MESSAGES_MAX",
    "MESSAGE_VALUE_BYTES_MAX", "MESSAGE_KEY_BYTES_MAX", "MESSAGE_HEADERS_MAX", "TOPIC_NAME_CHARACTERS_MAX",
    "CLIENT_NAME_CHARACTERS_MAX", "PARTITIONS_PER_TOPIC_MAX", "TOPICS_MAX", "PARTITIONS_PER_BROKER_MAX",
    "PRODUCER_IN_FLIGHT_BATCHES_MAX", "PRODUCERS_PER_PARTITION_MAX", "PRODUCERS_PER_CONNECTION_MAX",
    "PRODUCER_SEARCH_BATCHES_MAX", "PRODUCER_SEARCH_BYTES_MAX", "STREAM_CREDIT_BYTES_MAX",
    "STREAMS_PER_CONNECTION_MAX", "CONNECTIONS_MAX", "HANDSHAKE_S", "PARTIAL_FRAME_S", "HEARTBEAT_S", "SILENCE_S",
    "LINK_WATCH_S", "LINK_SILENCE_S", "REPLICAS", "REPLICAS_MAX",
)  # fmt: skip

IN_A_CLUSTER: Final = (
    "PEER_HEARTBEAT_S", "PEER_SILENCE_S", "CONTROLLER_SILENCE_S", "ELECTION_STAGGER_S", "PEER_DIAL_S", "LEASE_S",
    "STORE_AWAY_S", "PEER_LOOK_S", "SECRET_ROTATION_S",
    "LINK_QUIET_S", "REPLICA_STALL_S", "REPLICA_SLOW_S", "SYNC_SLOW_S", "SLOW_PAUSE_S",
    "STALL_TIMES", "UNABLE_S", "JOINT_STALL_S",
    "JOIN_LAG_MESSAGES", "JOINER_HELD_OFF_S", "RESIGN_S", "CONFIRM_S", "SUPERSEDED_S", "MOVES_MAX", "REPORT_S",
    "COORDINATION_SWAP_OPERATIONS_MAX", "COORDINATION_TIMEOUT_S", "COORDINATION_POLL_S", "COORDINATION_POLL_TIMEOUT_S",
    "LINK_WATCH_S", "LINK_SILENCE_S",
)  # fmt: skip


def limits_table(names: tuple[str, ...] = ON_THE_WIRE) -> str:
    """The bounds that a client meets, with the reasons that stand beside them in the code."""
    from stentor import limits

    reasons = _reasons(Path(limits.__file__))
    rows = [f"| `{name}` | {getattr(limits, name)} | {reasons.get(name, '')} |" for name in names]
    return "\n".join(["| limit | value | why |", "|---|---|---|", *rows, ""])


def _reasons(module: Path) -> dict[str, str]:
    """The text below each constant; constants in a row share the text below the last of them."""
    reasons: dict[str, str] = {}
    waiting: list[str] = []
    line = 0
    for node in ast.parse(module.read_text(encoding="utf-8")).body:
        if node.lineno > line + 1:
            waiting = []
        line = node.end_lineno or node.lineno
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            waiting.append(node.target.id)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            reason = RULE.sub("", " ".join(str(node.value.value).split()))
            reasons.update(dict.fromkeys(waiting, reason))
            waiting = []
    return reasons


def settings_table() -> str:
    """Every setting of a broker."""
    from stentor.broker.config import described_settings

    rows = [
        f"| `{name}` | `--{name.replace('_', '-')}` | `STENTOR_{name.upper()}` | {_shown(default)} | {meaning} |"
        for name, default, meaning in described_settings()
    ]
    return "\n".join(["| setting | flag | variable | default | meaning |", "|---|---|---|---|---|", *rows, ""])


def _shown(default: Any) -> str:
    if default is None or default == "":
        return "none" if default is None else "empty"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def conversation() -> str:
    """What a client and a broker say to each other, byte by byte."""
    from record_protocol import record

    return f"```text\n{record()}```\n"


def error_tree() -> str:
    """The tree of errors, as it is drawn above them."""
    from stentor import errors

    lines = (errors.__doc__ or "").split("\n\n")[1].splitlines()
    tree = "\n".join(line.removeprefix("    ") for line in lines)
    return f"```text\n{tree}\n```\n"


def error_table() -> str:
    """Every error: what it means, what to do, whether trying again can help."""
    from stentor import error_root, errors, request_errors, work_errors

    rows = []
    branches = {module.__name__ for module in (error_root, errors, request_errors, work_errors)}
    kinds = [kind for kind in errors.BY_CODE.values() if kind.__module__ in branches]
    for kind in sorted(kinds, key=lambda kind: kind.__name__):
        meaning, _, advice = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")
        again = "yes" if kind.retriable else "no"
        cells = (" ".join(text.split()) for text in (meaning, advice))
        rows.append(f"| `{kind.__name__}` | `{kind.code}` | {' | '.join(cells)} | {again} |")
    return "\n".join(["| error | code | when | what to do | retriable |", "|---|---|---|---|---|", *rows, ""])


PARTS: Final[dict[str, Callable[[], str]]] = {
    "limits": limits_table,
    "cluster_limits": partial(limits_table, IN_A_CLUSTER),
    "settings": settings_table,
    "conversation": conversation,
    "error_tree": error_tree,
    "error_table": error_table,
}


def result_table(name: str) -> str:
    """A table of measured figures."""
    import result_tables

    table: Callable[[], str] = getattr(result_tables, name)
    return table()


PARTS.update(
    {
        name: partial(result_table, name)
        for name in (
            "speed",
            "replicas",
            "scaling",
            "failover",
            "useless",
            "spark",
            "weight",
            "patterns",
            "sharing",
            "attacks",
        )
    }
)


def made(text: str) -> str:
    """A document with its made parts as they must be."""
    return PART.sub(lambda part: f"{part[1]}{PARTS[part[2]]()}{part[3]}", text)


def main() -> int:
    """Write or check all documents."""
    old = []
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        text = path.read_text(encoding="utf-8")
        wanted = made(text)
        if wanted == text:
            continue
        old.append(path.name)
        if "--check" not in sys.argv[1:]:
            path.write_text(wanted, encoding="utf-8")
    if old and "--check" in sys.argv[1:]:
        print(f"out of date: {', '.join(old)}; run `make docs`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
