"""The bounds of requests and their responders, with their reasons."""

from __future__ import annotations

from typing import Final

ASK_BYTES_MAX: Final = 1024 * 1024
"""Of a request, and of each answer, with headers. They wait in memory; what is larger belongs into a topic."""

ASKS_PER_CLIENT_MAX: Final = 10_000
"""Requests of one client that wait for their answers. Further calls wait for one of these to end."""

ASKS_PER_CONNECTION_MAX: Final = 20_000
"""The same at a broker: requests that a client gave up count here until their responders are done with them."""

ASKS_IN_WORK_MAX: Final = 500_000
"""Requests that all responders of one broker have: about 150 MB. Who asks, gives up and connects again has no bound of
his own."""

ASKS_QUEUED_MAX: Final = 100_000
"""Requests that wait at one broker until a responder is free."""

ASKS_QUEUED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Their memory."""

ASKS_QUEUED_PER_CONNECTION_BYTES_MAX: Final = 16 * 1024 * 1024
"""The share of it that one connection may use: nobody can fill it alone."""

ASK_S_MAX: Final = 86_400.0
"""The longest deadline of a request: a day."""

ASK_OVERDUE_S: Final = 1.0
"""A broker lets its clients notice a deadline first: they tell it in more words."""

ASK_SWEEP_S: Final = 0.25
"""How often a broker looks for requests whose deadline has passed."""

SERVICES_PER_CONNECTION_MAX: Final = 1_000
"""Topics that one client may serve."""

SERVICES_MAX: Final = 10_000
"""Topics that are served at one broker: it tells the others about them all."""

RESPONDER_WINDOW_MAX: Final = 10_000
"""Requests that one responder may have at a time."""

RESPONDER_WINDOWS_MAX: Final = 100_000
"""The same for all services of one connection together: about 30 MB at the broker."""

RESPONDER_CONCURRENCY: Final = 16
"""Requests that a responder works on at a time, unless it is told otherwise: handlers often wait for something."""

STREAM_CREDIT_BYTES: Final = 256 * 1024
"""How much of a streamed answer may be under way before its caller has taken it."""

RESPONDERS_LOOK_S: Final = 1.0
"""A client that uses a service asks this often where its responders are, so that new ones get their share."""

RESPONDERS_MOVE_S: Final = 3.0
"""When a broker is lost, its responders register elsewhere. For this long a service without one may be moving."""

RESPONDERS_TELL_S: Final = 10.0
"""How often a broker tells the others all its services, beside every change. What it says counts for three times as
long.
"""
