"""How much of each work is done: all of it, or what fits a few minutes."""

from __future__ import annotations

from dataclasses import dataclass

from bench.model import Spec


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes of all works."""

    repetitions: int = 5
    clone_keys: int = 1_000_000
    nats_repetitions: int = 2
    get_keys: int = 100_000
    large_keys: int = 10_000_000
    updates_per_s: int = 10_000
    updates_s: float = 20.0
    copies: int = 50
    copy_processes: int = 2
    faults_per_s: int = 2_000
    fault_rounds: int = 3
    requests: int = 10_000
    queue_jobs: int = 200_000
    clients: int = 10_000
    client_processes: int = 2
    client_updates: int = 20
    clients_held_s: float = 30.0
    work_messages: int = 2_000_000
    work_computed: int = 2_000
    fast_subscribers: int = 100
    slow_rate: int = 100
    slow_rounds: int = 20
    slow_s: float = 2.0
    tasks: int = 20_000
    systems: tuple[str, ...] = ()
    """Only these, by their first word; empty: all."""

    def wants(self, system: str) -> bool:
        return not self.systems or system.split(maxsplit=1)[0] in self.systems


QUICK = Plan(
    repetitions=2,
    clone_keys=100_000,
    nats_repetitions=1,
    get_keys=20_000,
    large_keys=500_000,
    updates_per_s=2_000,
    updates_s=5.0,
    copies=10,
    copy_processes=2,
    faults_per_s=500,
    fault_rounds=1,
    requests=3_000,
    queue_jobs=20_000,
    clients=500,
    client_processes=1,
    client_updates=5,
    clients_held_s=2.0,
    work_messages=300_000,
    work_computed=300,
    fast_subscribers=20,
    slow_rounds=3,
    tasks=5_000,
)


def told(system: str, address: str, **extra: object) -> Spec:
    """What a role of these works is told."""
    return Spec(
        system=system,
        mode="hiredis",
        variant="tuned",
        durability="none",
        address=address,
        size=100,
        batch=1000,
        chunk=1000,
        unit=1000,
        partitions=1,
        seconds=0.0,
        seed=7,
        topic="table",
        extra=dict(extra),
    )
