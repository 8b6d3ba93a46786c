"""What a broker writes down now and then."""

from types import SimpleNamespace

import pytest

from stentor.broker.books import Books
from stentor.errors import InternalError


class Journal:
    """Fails once, and counts what it is asked to write."""

    def __init__(self):
        self.fails = True
        self.stored = 0

    def get(self, *_):
        return None

    def update(self, *_, **__):
        if self.fails:
            raise InternalError("The journal would go back.")

    def store(self):
        self.stored += 1


def test_a_round_that_failed_is_followed_by_the_next_one():
    log = SimpleNamespace(in_memory=False, synced_end=1, identity=SimpleNamespace(log_id=7))
    replica = SimpleNamespace(committed=1, damaged=False, failed="")
    partition = SimpleNamespace(
        key=(1, 0), log=log, replica=replica, sync=SimpleNamespace(is_cutting=False), noted=None
    )
    journal = Journal()
    memory = SimpleNamespace(store=lambda: None)
    books = Books(SimpleNamespace(alone=True), journal, {(1, 0): partition}, None, memory)
    threads = SimpleNamespace(submit=lambda work, done: done(work(), None))
    with pytest.raises(InternalError):
        books.store_soon(threads)
    journal.fails = False
    books.store_soon(threads)
    assert journal.stored == 1
