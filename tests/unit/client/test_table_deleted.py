"""A table that somebody deletes while a copy is open ends the copy, and does not come back as something else."""

import pytest

import stentor


def test_a_copy_of_a_deleted_table_does_not_make_it_again(client, shared):
    client.create_topic("deleted.open", kind="table")
    with shared.client() as other, client.table("deleted.open") as table, table.watch() as watch:
        table.put("a", "1")
        assert watch.get(timeout=10).key == "a"
        other.delete_topic("deleted.open")
        with pytest.raises(stentor.TopicNotFound):
            watch.get(timeout=10)
        for use in (lambda: table["a"], table.sync, lambda: table.put("a", "2"), lambda: table.add("n")):
            with pytest.raises(stentor.TopicNotFound):
                use()
        assert other.topics("deleted.open") == []


def test_a_copy_that_has_not_heard_of_the_end_does_not_make_the_table_again(client, shared):
    client.create_topic("deleted.unheard", kind="table")
    with shared.client() as other, client.table("deleted.unheard") as table:
        other.delete_topic("deleted.unheard")
        with pytest.raises(stentor.StentorError):
            table.sync(timeout=5)
        assert other.topics("deleted.unheard") == []
