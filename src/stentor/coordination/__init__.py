"""Where hard cluster state lives."""

from stentor.coordination.embedded import EmbeddedStore

__all__ = ["EmbeddedStore"]
