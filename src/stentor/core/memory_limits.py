"""The bounds of memory topics, with their reasons."""

from __future__ import annotations

from typing import Final

from stentor.limits import MIB

MEMORY_TOPIC_BYTES: Final = 16 * MIB
"""What a partition of a memory topic keeps of its newest messages, unless the topic says otherwise: some seconds of
telemetry, while a hundred such partitions still fit a small machine."""

MEMORY_TOPIC_BYTES_MAX: Final = 1_024 * MIB
"""What it may be told to keep: more belongs on a disk."""

OFFSETS_RESERVED: Final = 2**36
"""So many offsets at a time are set aside for the head of a memory topic's chain. A log that was lost begins anew
behind them. Large enough that renewing them is rare; small enough that a million restarts leave most of 62 bits."""

OFFSETS_RENEWED: Final = OFFSETS_RESERVED // 2
"""With fewer than this left, the controller sets more aside: hours ahead at any rate that a head can take."""
