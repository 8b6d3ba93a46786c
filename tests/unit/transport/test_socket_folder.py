import socket
import stat
import tempfile
from pathlib import Path

import pytest

from stentor.transport.socket_folder import make_socket_folder


@pytest.fixture
def short():
    """Unlike pytest's own, which may be anywhere."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        yield Path(made)


@pytest.mark.parametrize("folder", ["t", "with a space", "long" * 25])
def test_a_socket_fits_wherever_temporary_files_are_kept(short, monkeypatch, folder):
    (short / folder).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(short / folder))
    made = make_socket_folder("stentor-control-")
    socket_path = made / "control"
    try:
        assert stat.S_IMODE(made.stat().st_mode) == 0o700
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(socket_path))
        assert (made.parent == short / folder) == ("long" not in folder)
    finally:
        socket_path.unlink(missing_ok=True)
        made.rmdir()
