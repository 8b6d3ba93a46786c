"""What a ZeroMQ gateway has done, counted."""

from __future__ import annotations

import msgspec


class GatewayStatistics(msgspec.Struct):
    """Counts since the gateway started."""

    snapshots: int = 0  # sent to their end
    snapshots_dropped: int = 0  # the client was gone, stood still, or asked again
    published: int = 0  # KVPUB
    hugz: int = 0  # signs of life; silent while the gateway is cut off from its table
    changes: int = 0  # KVSET that were committed
    duplicates: int = 0  # KVSET that had come through another gateway already
    changes_lost: int = 0  # KVSET that could not be made in time
    bad_frames: int = 0  # messages that are none of the protocol's; dropped
    messages_out: int = 0  # of topics, to subscribers
    messages_in: int = 0  # into topics
    messages_lost: int = 0  # that a topic did not accept
