"""Three replicas: acknowledged publish and live consumption at full speed, on every replica before the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.model import Case
from bench.works import throughput

if TYPE_CHECKING:
    from bench.model import Options, Sample
    from bench.runner import Bench

TITLE = "three replicas: acked publish + live consume"

# system, mode, variant, durability
WAYS = (
    ("stentor3", "send", "stock", "fsync"),
    ("stentor3", "send_many", "tuned", "fsync"),
    ("stentor3", "send_many", "tuned", "os"),
    ("nats3", "gather", "stock", "os"),
    ("nats3", "window", "tuned", "os"),
    ("nats3", "gather", "stock", "fsync"),
    ("nats3", "window", "tuned", "fsync"),
)


def cases(options: Options) -> list[Case]:
    return [
        Case("replicated", name, mode, variant, durability, size, batch=1000)
        for size in (options.sizes[:1] if options.quick else options.sizes)
        for name, mode, variant, durability in WAYS
    ]


def run(case: Case, bench: Bench) -> Sample:
    return throughput.run(case, bench)
