"""The bounds of the ZeroMQ gateway, each with its reason."""

from __future__ import annotations

from typing import Final

HUGZ_INTERVAL_S: Final = 1.0
"""Between two signs of life. Clone clients take five seconds of silence for a dead server."""

CONTACT_S_MAX: Final = 3.0
"""A gateway whose copy of the table was last known to be current longer ago gives no sign of life: its clients then
turn to another gateway. Shorter than the silence that clients bear, longer than a slow answer."""

SILENT_S: Final = 6.0
"""A gateway that starts publishes nothing for this long. A client of an earlier one at this place may have missed
changes and not know it: five seconds of silence make it turn and ask for a snapshot, and the last sign of life may be
still on its way."""

REPLAYED_MAX: Final = 5_000
"""Changes that a gateway publishes again when it begins, for clients without a clock (the Guide's models 1 to 5). They
must fit the queue of a subscriber, with room for those that follow."""

REPLAYED_BYTES_MAX: Final = 16 << 20
"""The same in bytes of values."""

QUEUE_MESSAGES: Final = 10_000
"""High-water mark of each socket: messages that wait for one peer. ZeroMQ's own 1,000 is a few milliseconds."""

SNAPSHOTS_MAX: Final = 64
"""Snapshots under way at one time; the others wait for their turn."""

SNAPSHOT_REQUESTS_MAX: Final = 10_000
"""Clients that wait for a snapshot; a request above that is dropped, and the client asks again."""

SNAPSHOT_STALLED_S: Final = 30.0
"""A client that takes nothing of its snapshot for this long has its snapshot dropped."""

SNAPSHOT_SLICE: Final = 200
"""Entries sent before the loop looks at others."""

SNAPSHOT_PAUSE_S: Final = 0.01
"""Between two attempts to send to a client whose queue is full."""

UUIDS_REMEMBERED: Final = 100_000
"""Changes remembered by their UUID, to know again those that came through another gateway: some 10 MB."""

CHANGES_PER_BATCH_MAX: Final = 500
"""Changes of clients that are committed together."""

CHANGE_BYTES_PER_BATCH_MAX: Final = 1 << 20
"""The same in bytes. A single larger change goes alone."""

CHANGE_S: Final = 60.0
"""How long the gateway tries to make a change before it drops it: longer than any failover."""

CONDITIONAL_TRIES_MAX: Final = 5
"""How often a change waits for a version before it is made without a condition."""

HUGZ_PREFIXES_MAX: Final = 10_000
"""Subscribed prefixes that get signs of life of their own."""

COLLECTOR_CONNECTIONS_MAX: Final = 10_000
"""Clients connected to the collector's port; each takes two descriptors of ours."""

HANDSHAKE_S: Final = 10.0
"""A connection to the collector's port that has not said what it is by then is closed."""

RELAY_BYTES: Final = 1 << 16
"""Bytes that the collector's port passes on at once."""

RESTART_S: Final = 1.0
"""Before a gateway that ended is started again, the first time; each further time twice as long."""

RESTART_S_MAX: Final = 30.0
"""The longest wait before a gateway is started again."""

STOP_S: Final = 5.0
"""What a gateway gets to end by itself."""
