"""The servers' own benchmark programs: how fast they take messages when no Python is in the way.

They produce and do not read, so a row here is a ceiling of the server, not the same work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.model import Case, Sample
from bench.systems import system

if TYPE_CHECKING:
    from bench.model import Options
    from bench.runner import Bench

TITLE = "the servers' own tools"
NOTE = "produce only"


def cases(options: Options) -> list[Case]:
    sizes = options.sizes[:1] if options.quick else options.sizes
    return [
        Case("native", name, tool, "native", durability, size, 1000, note=NOTE)
        for size in sizes
        for name, tool in (("redis", "redis-benchmark"), ("nats", "nats bench"))
        for durability in ("fsync", "os")
    ]


def run(case: Case, bench: Bench) -> Sample:
    with bench.server(case) as (server, _):
        cpu = server.cpu_s()
        rate = system(case.system).native(case, server, bench.options.seconds)
        cpu = server.cpu_s() - cpu
    return Sample(messages_per_second=rate, extra={"broker_cpu_s": cpu})
