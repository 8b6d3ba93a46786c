"""The bounds of work queues, with their reasons; those of one algorithm stand beside it."""

from __future__ import annotations

from typing import Final

POLLS_UNDER_WAY_MAX: Final = 4_096
"""Requests of one connection that wait for news, beside the others: for each partition of the largest queue one for
jobs and one that hears what others need, and a heartbeat for each member of a group.
"""

QUEUE_PREFETCH: Final = 1_000
"""Jobs that a consumer holds at most, unless it is told otherwise. It holds what it does in half a second (`JobShare`),
so only one that does thousands of jobs a second comes to as many; each request costs its head as much as 300 jobs.
"""

QUEUE_PREFETCH_MAX: Final = 20_000
"""The most: what a consumer holds nobody else can work on."""

QUEUE_RETENTION_S: Final = 86_400
"""How long a queue keeps jobs that are finished, if neither it nor the broker says anything about retention."""
