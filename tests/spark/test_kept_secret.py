"""A query's producer secret lies in its checkpoint, where the next driver finds it."""

from __future__ import annotations

import json
import threading

import pytest

from stentor.spark.kept_secret import FILE, kept_secret

QUERY = "5a5d9a4c-2f4e-4a2b-9d9c-0d8a8f9f1c11"


@pytest.fixture
def checkpoint(tmp_path):
    """As Spark begins one, with what a URL would escape."""
    place = tmp_path / "a place"
    place.mkdir()
    (place / "metadata").write_text(json.dumps({"id": QUERY}) + "\n")
    return place


def test_a_secret_is_made_once_and_found_again(checkpoint):
    made = kept_secret(str(checkpoint), QUERY, make=True)
    assert len(made) == 64
    assert kept_secret(f"file://{str(checkpoint).replace(' ', '%20')}", QUERY, make=True) == made
    assert kept_secret(f"file:{checkpoint}", QUERY, make=False) == made
    assert (checkpoint / FILE).stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in checkpoint.iterdir()) == ["metadata", FILE]


def test_none_is_made_unless_it_is_asked_for(checkpoint):
    assert kept_secret(str(checkpoint), QUERY, make=False) == ""
    assert not (checkpoint / FILE).exists()


@pytest.mark.parametrize("query", ["", "another"])
def test_another_querys_checkpoint_keeps_none_for_this_one(checkpoint, query):
    kept_secret(str(checkpoint), QUERY, make=True)
    assert kept_secret(str(checkpoint), query, make=True) == ""


@pytest.mark.parametrize("place", ["", "s3a://bucket/here", "hdfs://name/here", "/no/such/place", "no/such/place"])
def test_what_is_no_directory_of_this_machine_keeps_none(place):
    assert kept_secret(place, QUERY, make=True) == ""


@pytest.mark.parametrize("metadata", [b"", b"{", b"[]", b"{}", b"\xff"])
def test_a_checkpoint_that_cannot_be_read_keeps_none(checkpoint, metadata):
    (checkpoint / "metadata").write_bytes(metadata)
    assert kept_secret(str(checkpoint), QUERY, make=True) == ""


def test_drivers_that_begin_at_once_find_the_same(checkpoint):
    found = []
    together = threading.Barrier(8)

    def begin():
        together.wait()
        found.append(kept_secret(str(checkpoint), QUERY, make=True))

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len(found[0]) == 64
