"""Something listens there that is no broker."""

import socket
import time

import pytest

import stentor
from stentor import limits
from stentor.errors import ConnectionFailed


def test_a_server_that_accepts_and_says_nothing_is_not_waited_for_long(monkeypatch):
    monkeypatch.setattr(limits, "HANDSHAKE_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        with pytest.raises(ConnectionFailed, match="takes connections but says nothing"):
            stentor.connect(f"127.0.0.1:{silent.getsockname()[1]}", timeout=30)
        assert time.monotonic() - began < 10
