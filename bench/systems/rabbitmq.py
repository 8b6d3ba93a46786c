"""RabbitMQ for the comparison of work queues: Debian's package, one node with its data, ports and epmd of its own."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from bench.model import NotAvailableError
from bench.processes import Server, free_port

if TYPE_CHECKING:
    from bench.processes import Processes

PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""Debian's own wrapper on the path would start it as another user, with the machine's configuration."""


def start(directory: Path, processes: Processes) -> Server:
    """A single node, which only this machine can reach."""
    epmd = shutil.which("epmd")
    if not PROGRAM.exists() or epmd is None:
        raise NotAvailableError("rabbitmq-server is not installed")
    home = directory / "rabbitmq"
    home.mkdir()
    (home / "enabled_plugins").write_text("[].")
    (home / "environment").write_text("")
    (home / "rabbitmq.conf").write_text("log.console = false\nlog.file.level = warning\n")
    names, port, distribution = free_port(), free_port(), free_port()
    # Else the server would start a daemon for names that outlives it.
    processes.start_listening("epmd", [epmd, "-port", str(names), "-address", "127.0.0.1"], names)
    settings = {
        "HOME": str(home),
        "ERL_EPMD_PORT": str(names),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODENAME": f"bench{port}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(distribution),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "RABBITMQ_MNESIA_BASE": str(home / "mnesia"),
        "RABBITMQ_LOG_BASE": str(home / "log"),
        "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
        "RABBITMQ_CONF_ENV_FILE": str(home / "environment"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
    }
    environment = {**os.environ, **settings}
    process = processes.start_listening("rabbitmq", [str(PROGRAM)], port, env=environment)
    return Server(f"amqp://guest:guest@127.0.0.1:{port}/%2F?heartbeat=0", home, process)
