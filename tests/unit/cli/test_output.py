import errno
import io
import json
import os
import threading
from types import SimpleNamespace

import pytest

from stentor.cli import output, progress
from stentor.cli.output import PIECE_BYTES, LiveOutput, table_lines
from stentor.cli.progress import InputProgress

WAIT_S = 15.0


def test_a_table_is_aligned_with_numbers_to_the_right():
    lines = table_lines(("NAME", "SIZE"), [("a", 1), ("long.name", 1000)], right=("SIZE",))
    assert lines == ["NAME       SIZE", "a             1", "long.name  1000"]


def test_a_table_without_rows_is_its_heading():
    assert table_lines(("NAME", "SIZE"), []) == ["NAME  SIZE"]


class Pipe(io.BytesIO):
    """Takes only a part of each write, as a pipe may, and remembers how often it was written to."""

    def __init__(self):
        super().__init__()
        self.writes = 0

    def write(self, data):
        self.writes += 1
        return super().write(data[:100_000])


def live_output_to(pipe, monkeypatch, on_failure=None):
    monkeypatch.setattr("sys.stdout", SimpleNamespace(buffer=pipe, flush=lambda: None))
    return LiveOutput(on_failure)


def test_everything_is_written_in_order_and_in_large_pieces(monkeypatch):
    pipe = Pipe()
    lines = [b"%07d\n" % number for number in range(PIECE_BYTES // 4)]
    with live_output_to(pipe, monkeypatch) as output:
        for line in lines:
            output.write(line)
    assert pipe.getvalue().splitlines(keepends=True) == lines
    assert pipe.writes < 1000


def test_a_pipe_that_was_closed_is_reported_to_whoever_writes(monkeypatch):
    class Closed(io.BytesIO):
        def write(self, _):
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError), live_output_to(Closed(), monkeypatch) as output:
        output.write(b"x" * PIECE_BYTES)


class Full(io.BytesIO):
    def write(self, _):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def write_until_it_fails(pipe, monkeypatch, *pieces):
    """Writes, waits until the thread has failed with it, then goes on."""
    failed = threading.Event()
    with live_output_to(pipe, monkeypatch, failed.set) as output:
        output.write(b"lost")
        assert failed.wait(WAIT_S)
        for piece in pieces:
            output.write(piece)
            pytest.fail("it was taken")


@pytest.mark.parametrize("pieces", [(), (b"more",)], ids=["at the end", "by the next write"])
def test_what_the_thread_could_not_write_wakes_whoever_waits_and_is_raised(monkeypatch, pieces):
    with pytest.raises(OSError, match="No space left on device: 'standard output'"):
        write_until_it_fails(Full(), monkeypatch, *pieces)


def test_a_reader_that_goes_away_is_noticed_while_there_is_nothing_to_write(monkeypatch):
    failed = threading.Event()
    reading, writing = os.pipe()

    def be_silent():
        with live_output_to(pipe, monkeypatch, failed.set):
            os.close(reading)
            assert failed.wait(WAIT_S)

    with os.fdopen(writing, "wb") as pipe, pytest.raises(BrokenPipeError):
        be_silent()


def test_ctrl_c_is_not_hidden_by_the_pipe_that_it_broke(monkeypatch):
    def be_interrupted():
        with live_output_to(Full(), monkeypatch) as output:
            output.write(b"lost")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        be_interrupted()


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_long_input_has_a_progress_bar_on_a_terminal(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr(progress, "PATIENCE_S", 0)
    with InputProgress(1000) as bar:
        bar.show(1234, 500)
        bar._bar.refresh()
    assert "1,234 messages" in terminal.getvalue()


def test_a_pipe_gets_no_progress_bar(monkeypatch):
    stderr = io.StringIO()
    monkeypatch.setattr("sys.stderr", stderr)
    monkeypatch.setattr(progress, "PATIENCE_S", 0)
    with InputProgress(1000) as bar:
        bar.show(1234, 500)
    assert stderr.getvalue() == ""


NASTY = "a\x1b[2J\x9b31m\x7f\u202e\nb"


def test_a_table_moves_no_cursor(capsys):
    output.print_table(("NAME",), [(NASTY,)])
    output.print_facts([("name", NASTY)])
    assert all(line.isprintable() for line in capsys.readouterr().out.splitlines())


def test_json_moves_no_cursor_and_says_the_same(capsys):
    output.print_json({"name": NASTY, "other": "größer ☂"})
    out = capsys.readouterr().out
    assert all(letter.isprintable() or letter == "\n" for letter in out)
    assert json.loads(out) == {"name": NASTY, "other": "größer ☂"}
    assert "größer ☂" in out
