"""The whole store is read only for what the watch does not tell in time."""

from types import SimpleNamespace

from stentor.broker.cluster.store_look import StoreLook


def a_look(revision=10):
    due, looks = [], []
    environment = SimpleNamespace(loop=SimpleNamespace(call_later=lambda _, work: due.append(work)))
    rollback = SimpleNamespace(revision=revision)
    follower = SimpleNamespace(look_again=lambda: "a look")
    background = SimpleNamespace(closed=False, spawn=looks.append)
    return StoreLook(environment, rollback, follower, background), rollback, due, looks


def test_a_watch_that_tells_in_time_saves_the_look():
    look, restored, due, looks = a_look()
    look.soon(11)
    restored.revision = 11
    due.pop()()
    assert not looks


def test_many_changes_that_the_watch_does_not_tell_are_one_look():
    look, _, due, looks = a_look()
    for revision in range(11, 100):
        look.soon(revision)
    assert len(due) == 1
    due.pop()()
    assert len(looks) == 1
    look.soon(100)
    assert len(due) == 1


def test_a_change_at_an_unknown_revision_waits_for_anything_newer():
    look, restored, due, looks = a_look()
    look.soon(0)
    restored.revision = 11
    due.pop()()
    assert not looks
    look.soon(0)
    due.pop()()
    assert looks
