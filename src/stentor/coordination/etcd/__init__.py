"""The coordination store of a cluster: etcd, spoken to through the JSON gateway of its v3 API.

    store = open_etcd("etcd://h1:2379,h2:2379,h3:2379/stentor/prod", user="stentor", password=…)

etcd from 3.4 on serves the gateway on its client port. It is plain HTTP, which aiohttp speaks
already, so there is no gRPC library whose timeouts and reconnects would have to be trusted.
"""

from stentor.coordination.etcd.config import EtcdSettings, TlsFiles
from stentor.coordination.etcd.store import EtcdStore, open_etcd

__all__ = ["EtcdSettings", "EtcdStore", "TlsFiles", "open_etcd"]
