"""The former place of the pytest plugin, which environments name that were made before it moved."""

from stentor.pytest_plugin import stentor_broker, stentor_client, stentor_cluster

__all__ = ["stentor_broker", "stentor_client", "stentor_cluster"]
