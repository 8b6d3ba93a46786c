"""The bounds of the ZeroMQ gateway, each with its reason."""

from __future__ import annotations

from typing import Final

from stentor.limits import KIB, MESSAGE_VALUE_BYTES_MAX, MIB

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

CONNECTIONS_PER_PORT_MAX: Final = 10_000
"""Clients connected to a port; each takes two descriptors of ours, and one of ZeroMQ's."""

HANDSHAKE_S: Final = 10.0
"""A connection that has not said what it is by then is closed."""

RELAY_BYTES: Final = 1 << 16
"""Bytes that a port passes on at once."""

MESSAGE_FRAMES_MAX: Final = 16
"""Frames of a message. The protocols have five, and an envelope of two or three before them."""

MESSAGE_BYTES_MAX: Final = MESSAGE_VALUE_BYTES_MAX + 256 * KIB
"""All frames of a message: a value of the largest size, with key, headers and the rest."""

COMMAND_BYTES_MAX: Final = 64 * KIB
"""A command of ZMTP, or a subscription: no topic or key is longer."""

UNFINISHED_BYTES_MAX: Final = 64 * MIB
"""All messages of all peers whose last frame is not there yet."""

UNFINISHED_BYTES_FREE: Final = 16 * KIB
"""With more, only messages up to this size still come in."""

SUBSCRIPTIONS_PER_PEER_MAX: Final = 10_000
"""Prefixes of one subscriber."""

SUBSCRIPTION_BYTES_PER_PEER_MAX: Final = 512 * KIB
"""Their bytes together, each of which takes about 64 bytes of libzmq's: 32 MB."""

SUBSCRIPTION_BYTES_MAX: Final = 2 * MIB
"""The same of all subscribers together: about 128 MB."""

SUBSCRIPTION_BYTES_FREE: Final = 256
"""With more, a new subscriber still gets prefixes of this many bytes: a few for each of ten thousand."""

RESTART_S: Final = 1.0
"""Before a gateway that ended is started again, the first time; each further time twice as long."""

RESTART_S_MAX: Final = 30.0
"""The longest wait before a gateway is started again."""

STOP_S: Final = 5.0
"""What a gateway gets to end by itself."""
