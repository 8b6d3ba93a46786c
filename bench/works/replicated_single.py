"""Three replicas: one publish at a time, each waiting for its acknowledgement by all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.model import Case
from bench.works import single

if TYPE_CHECKING:
    from bench.model import Options, Sample
    from bench.runner import Bench

TITLE = "three replicas: one publish at a time"

WAYS = (
    ("stentor3", "publish", "stock", "fsync"),
    ("stentor3", "publish async", "stock", "fsync"),
    ("nats3", "publish", "stock", "os"),
    ("nats3", "publish", "tuned", "os"),
    ("nats3", "publish", "tuned", "fsync"),
)


def cases(options: Options) -> list[Case]:
    return [
        Case("replicated single", name, mode, variant, durability, size, batch=1)
        for size in options.sizes[:1]
        for name, mode, variant, durability in WAYS
    ]


def run(case: Case, bench: Bench) -> Sample:
    return single.run(case, bench)
