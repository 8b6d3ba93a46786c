"""Revenue per ten minutes and country, from a topic of orders to a topic of totals, with Spark.

Run it against a broker (`make run`) in an environment with the extra `spark`: python examples/revenue.py [plot.png]
It publishes an hour of orders to a topic of its own, lets Spark sum them up in a stream that writes every total once,
reads the totals back, and deletes the two topics that it made. With the name of a file it draws them; that needs
matplotlib.
"""

import json
import random
import secrets
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from typing import Any

import stentor
from stentor.spark import parse_json, session, to_json_value  # first: without PySpark it says what to install

from pyspark.sql import functions as f  # isort: skip

RUN = secrets.token_hex(4)  # topics of the same names may hold somebody's orders
ORDERS, REVENUE = f"example.{RUN}.orders", f"example.{RUN}.revenue"
START = datetime(2026, 11, 15, 12, tzinfo=UTC)


def publish_orders(client: stentor.Client) -> float:
    """An hour of orders; how much was bought."""
    chance, total = random.Random(7), 0.0  # noqa: S311 - not a secret
    with client.producer(ORDERS) as producer:
        for second in range(3600):
            amount = round(chance.uniform(5, 95) * (1 + second / 3600), 2)
            country = chance.choice(["de", "fr", "it"])
            order = json.dumps({"country": country, "amount": amount})
            producer.send(order, key=country, timestamp=START + timedelta(seconds=second))
            total += amount
    return total


def main() -> None:
    with stentor.connect() as client:
        for topic in (ORDERS, REVENUE):
            client.create_topic(topic, partitions=2)
        bought = publish_orders(client)

    spark = session("local[2]", app="revenue", ui=False)
    orders = parse_json(
        spark.readStream.format("stentor").option("subscribe", ORDERS).option("startingOffsets", "earliest").load(),
        "country string, amount double",
        keep="timestamp",
    )
    revenue = (
        orders.withWatermark("timestamp", "1 minute")
        .groupBy(f.window("timestamp", "10 minutes"), "country")
        .agg(f.round(f.sum("amount"), 2).alias("revenue"), f.count("*").alias("orders"))
        .select(f.col("window.start").alias("minute"), "country", "revenue", "orders")
    )
    with tempfile.TemporaryDirectory() as checkpoint:
        writer = to_json_value(revenue, key="country").writeStream.format("stentor").option("topic", REVENUE)
        writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        writer.start().awaitTermination()
    spark.stop()

    with stentor.connect() as client:
        totals = [json.loads(message.value or b"{}") for message in client.read(REVENUE)]
        for topic in (ORDERS, REVENUE):
            client.delete_topic(topic)
    print(f"{len(totals)} totals, {sum(total['orders'] for total in totals)} orders in closed windows")
    print(f"revenue in them: {sum(total['revenue'] for total in totals) / bought:.0%} of what was bought")
    if len(sys.argv) > 1:
        plot(totals, sys.argv[1])


def plot(totals: list[dict[str, Any]], path: str) -> None:
    """Lines per country over time."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4))
    for country in sorted({total["country"] for total in totals}):
        mine = sorted((total["minute"], total["revenue"]) for total in totals if total["country"] == country)
        axes.plot([minute[11:16] for minute, _ in mine], [revenue for _, revenue in mine], marker="o", label=country)
    axes.set(title="Revenue per ten minutes", xlabel="UTC")
    axes.legend()
    figure.savefig(path)


if __name__ == "__main__":
    main()
