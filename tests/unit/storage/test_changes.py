import os

import pytest

from stentor.errors import CorruptData, StorageError
from stentor.storage.changes import ChangesFile


def load(path):
    return ChangesFile(path).load()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "changes"


@pytest.fixture
def changes(path):
    file = ChangesFile(path)
    file.clear()
    for number in range(5):
        file.append(b"change %d" % number)
    return file


def test_changes_come_back_in_order(changes, path):
    assert load(path) == [b"change %d" % number for number in range(5)]
    assert load(path.with_name("none")) == []


def test_a_torn_change_at_the_end_is_cut_off_and_others_follow(changes, path):
    whole = path.read_bytes()
    size = len(whole) // 5
    for cut in range(1, size):
        path.write_bytes(whole[:-cut])
        again = ChangesFile(path)
        assert len(again.load()) == 4
        again.append(b"next")
        assert load(path)[-2:] == [b"change 3", b"next"]


def test_a_bad_change_with_a_good_one_behind_it_is_refused(changes, path):
    data = bytearray(path.read_bytes())
    for place in range(len(data) * 4 // 5 - 1):
        broken = bytearray(data)
        broken[place] ^= 0x41
        path.write_bytes(broken)
        with pytest.raises(CorruptData, match="others follow"):
            load(path)


def test_an_append_that_failed_leaves_nothing_and_the_file_is_not_appended_to(changes, path, monkeypatch):
    def fail(fd):
        raise OSError(5, "no")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(StorageError):
            changes.append(b"never")
    assert not changes.usable
    assert len(load(path)) == 5
    changes.clear()
    changes.append(b"anew")
    assert load(path) == [b"anew"]
