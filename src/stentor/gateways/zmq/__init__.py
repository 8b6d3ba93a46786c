"""ZeroMQ clients: tables by the Clustered Hashmap Protocol, topics by SUB and PUSH. See docs/gateways/zeromq.md."""

from importlib.util import find_spec

from stentor.errors import MissingPackage

if find_spec("zmq") is None:
    raise MissingPackage("The ZeroMQ gateway needs pyzmq, which is not installed.", hint="pip install 'pyzmq>=26'")
