"""The broker: performs the effects of the core's machines on real sockets and disks."""

from stentor.broker.broker import Broker
from stentor.broker.config import BrokerConfig, load_config

__all__ = ["Broker", "BrokerConfig", "load_config"]
