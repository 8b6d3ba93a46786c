"""SQL over topics: names with dots, joins, the lake and the brokers as one table."""

from __future__ import annotations

import threading

import pytest

from stentor.errors import InvalidArgument, OffsetOutOfRange, TopicNotFound
from stentor.spark.pipelines.record import record
from stentor.spark.pipelines.sql import query, tables_quoted

LARGE = b"x" * 20_000


@pytest.fixture
def ask(spark):
    """The rows of a query as plain tuples."""

    def run(text, **options):
        return [tuple(row) for row in query(spark, text, **options).collect()]

    return run


@pytest.fixture
def orders(client, topic):
    """Two topics with dots and dashes in their names: what was ordered and what was paid."""
    for key, value in (("ada", "3"), ("bob", "4"), ("ada", "5")):
        client.publish(f"{topic}.orders.eu", value, key=key)
    client.publish(f"{topic}.paid", "8", key="ada")
    return topic


class TestNames:
    TOPICS = ("orders", "orders.eu", "orders-eu", "returns.eu", "Mixed.Case")

    @pytest.mark.parametrize(
        ("text", "rewritten"),
        [
            ("select * from orders.eu", "select * from `orders.eu`"),
            ("select * FROM\n orders.eu\nwhere 1=1", "select * FROM\n `orders.eu`\nwhere 1=1"),
            ("select * from `orders.eu`", "select * from `orders.eu`"),
            ("select * from orders-eu, orders", "select * from `orders-eu`, `orders`"),
            ("select o.key from orders.eu o", "select o.key from `orders.eu` o"),
            ("select orders.eu.key from orders.eu", "select `orders.eu`.key from `orders.eu`"),
            (
                "select * from orders.eu as o left join returns.eu r on o.key = r.key",
                "select * from `orders.eu` as o left join `returns.eu` r on o.key = r.key",
            ),
            (
                "select * from (select key from orders.eu) where key in (select key from returns.eu)",
                "select * from (select key from `orders.eu`) where key in (select key from `returns.eu`)",
            ),
            ("select * from mixed.case", "select * from `Mixed.Case`"),
            ("select 'from orders.eu' from orders.eu", "select 'from orders.eu' from `orders.eu`"),
            ('select "it\'s from orders.eu" from orders', 'select "it\'s from orders.eu" from `orders`'),
            ("select 1 -- it's from orders.eu\nfrom orders", "select 1 -- it's from orders.eu\nfrom `orders`"),
            ("select 1 /* from orders.eu */ from orders", "select 1 /* from orders.eu */ from `orders`"),
            ("select * from orders.eu.north", "select * from orders.eu.north"),
            ("select * from my_orders.eu", "select * from my_orders.eu"),
            ("select returns.eu from orders returns", "select returns.eu from `orders` returns"),
            ("select extract(year from orders) from nothing", "select extract(year from `orders`) from nothing"),
        ],
    )
    def test_topics_are_recognised_where_tables_are_named(self, text, rewritten):
        assert tables_quoted(text, self.TOPICS)[0] == rewritten

    def test_topics_that_differ_by_case_only_cannot_be_told_apart_by_spark(self):
        with pytest.raises(InvalidArgument, match="differ only by case"):
            tables_quoted("select * from a.b, A.B", ["a.b", "A.B"])
        assert tables_quoted("select * from A.B", ["a.b", "A.B"])[1] == {"A.B"}


class TestQueries:
    def test_keys_and_values_are_text_or_bytes(self, ask, orders):
        text = f"select key, value from {orders}.orders.eu where key = 'bob'"
        assert ask(text) == [("bob", "4")]
        assert ask(text.replace("'bob'", "x'626f62'"), binary=True) == [(b"bob", b"4")]

    def test_topics_are_joined_with_and_without_other_names(self, ask, orders):
        named = f"""select o.key, sum(o.value), max(p.value) from {orders}.orders.eu o
                    join `{orders}.paid` as p on o.key = p.key group by o.key"""
        assert ask(named) == [("ada", 8.0, "8")]
        whole = f"""select {orders}.paid.value, count(*) from {orders}.orders.eu, {orders}.paid
                    where {orders}.orders.eu.key = {orders}.paid.key group by 1"""
        assert ask(whole) == [("8", 2)]

    def test_a_query_may_give_a_topics_name_to_something_else(self, ask, client, topic):
        client.publish(topic, "a")
        text = f"with `{topic}` as (select 'mine' as value) select value from `{topic}`"
        assert ask(text) == [("mine",)]

    def test_strings_that_contain_topics_stay_as_they_are(self, ask, orders):
        text = f"select distinct 'from {orders}.orders.eu' from {orders}.orders.eu"
        assert ask(text) == [(f"from {orders}.orders.eu",)]

    @pytest.mark.parametrize(
        ("name", "sentence"),
        [
            ("{}.orders.au", "There is no topic {}.orders.au. Did you mean {}.orders.eu?"),
            ("x.y", "There is no topic x.y. List topics with `stentor topic list`."),
        ],
    )
    def test_a_topic_that_does_not_exist_is_told(self, ask, orders, name, sentence):
        with pytest.raises(TopicNotFound) as caught:
            ask(f"with mine as (select 1) select * from mine, {name.format(orders)}")
        assert str(caught.value) == sentence.replace("{}", orders)

    def test_a_query_without_topics_is_a_query(self, ask):
        assert ask("select 1 + 1") == [(2,)]


class TestLake:
    @pytest.mark.parametrize("kind", ["parquet", "delta"])
    def test_history_and_present_are_one_table_while_publishing_and_recording_go_on(
        self, spark, ask, client, topic, tmp_path, kind
    ):
        lake, stop = tmp_path / "lake", threading.Event()
        client.create_topic(topic, partitions=2)
        client.publish(topic, "0")
        record(spark, [topic], lake, kind=kind)

        def publish():
            number = 0
            while not stop.wait(0.002):
                number += 1
                client.publish(topic, str(number), partition=number % 2)

        threads = [
            threading.Thread(target=publish),
            threading.Thread(
                target=lambda: record(spark, [topic], lake, once=False, interval_s=0.05, stop=stop, round_rows=50)
            ),
        ]
        for thread in threads:
            thread.start()
        try:
            for _ in range(3):
                least = sum(client.offsets(topic).values())
                found = ask(
                    f"select partition, count(*), count(distinct offset), max(offset) + 1 from `{topic}` group by 1",
                    lake=lake,
                )
                assert all(rows == distinct == end for _, rows, distinct, end in found)
                assert least <= sum(rows for _, rows, _, _ in found) <= sum(client.offsets(topic).values())
        finally:
            stop.set()
            for thread in threads:
                thread.join()

    def test_a_topic_that_is_only_in_the_lake_can_be_asked(self, spark, ask, client, topic, tmp_path):
        client.publish(f"{topic}.old", "a")
        record(spark, [f"{topic}.*"], tmp_path / "lake")
        client.delete_topic(f"{topic}.old")
        assert ask(f"select value from {topic}.old", lake=tmp_path / "lake") == [("a",)]

    def test_a_topic_that_is_only_in_the_cluster_can_be_asked(self, spark, ask, client, topic, tmp_path):
        client.publish(f"{topic}.a", "a")
        record(spark, [f"{topic}.a"], tmp_path / "lake")
        client.publish(f"{topic}.b", "b")
        both = f"select value from {topic}.a union all select value from {topic}.b order by 1"
        assert ask(both, lake=tmp_path / "lake") == [("a",), ("b",)]

    def test_a_topic_that_was_made_again_shows_its_new_messages_only(self, spark, ask, client, topic, tmp_path):
        client.publish(topic, "old")
        record(spark, [topic], tmp_path / "lake")
        client.delete_topic(topic)
        client.publish(topic, "new")
        assert ask(f"select value from `{topic}`", lake=tmp_path / "lake") == [("new",)]

    def test_a_gap_between_lake_and_brokers_is_told(self, spark, ask, client, topic, tmp_path, wait_until):
        client.create_topic(topic, retention_bytes=0)
        client.publish(topic, "a")
        record(spark, [topic], tmp_path / "lake")
        for _ in range(8):
            client.publish(topic, LARGE)
        wait_until(lambda: client.offsets(topic, "earliest")[0] > 1)
        with pytest.raises(
            OffsetOutOfRange, match=r"the lake ends at 1, the brokers begin at \d+; \d+ messages are in"
        ):
            ask(f"select * from `{topic}`", lake=tmp_path / "lake")

    def test_a_lake_that_is_not_there_is_told(self, ask, tmp_path):
        with pytest.raises(InvalidArgument, match="There is no lake at"):
            ask("select 1", lake=tmp_path / "nothing")
