"""One, two and three brokers, one replica each, with one and two partitions per broker, on the same two cores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.model import Case
from bench.works import throughput

if TYPE_CHECKING:
    from bench.model import Options, Sample
    from bench.runner import Bench

TITLE = "brokers and partitions on one machine"
BROKERS = (1, 2, 3)
PER_BROKER = (1, 2)


def cases(options: Options) -> list[Case]:
    return [
        Case(
            "scaling", f"stentor{brokers}", "send_many", "tuned", "fsync", options.sizes[0], 1000, brokers * each,
            note="one replica",
        )
        for brokers in BROKERS
        for each in PER_BROKER
    ]  # fmt: skip


def run(case: Case, bench: Bench) -> Sample:
    return throughput.run(case, bench)
