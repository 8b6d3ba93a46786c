"""How a broker stands in its cluster, as far as its replicas must know it.

One object per broker: its liveness and its start write it, every decision of a replica reads it (`core.decisions`).
"""

from __future__ import annotations


class Standing:
    """What a broker knows about being heard."""

    __slots__ = ("awake_since_us", "confirmed", "storeless", "unheard")

    def __init__(self) -> None:
        self.confirmed = True  # C6: whoever could replace this broker would have told it
        self.storeless = False  # C27: it started without its coordination store, and takes part in nothing
        self.unheard: frozenset[str] = frozenset()  # brokers that this one does not hear, or that do not hear it
        self.awake_since_us = 0  # since when this broker has not stood still itself (C15)
