"""Orders of a topic as a table, their totals per customer and minute as another, and as messages of a topic.

A message of the topic `orders` is JSON: {"customer": "ada", "amount": 12.5}. Spark finds out by itself what depends on
what, and in which order to run it.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()


def parsed() -> DataFrame:
    """The topic's messages as columns; what is not such JSON is left out."""
    messages = spark.readStream.format("stentor").options(subscribe="orders", startingOffsets="earliest").load()
    order = f.from_json(f.col("value").cast("string"), "customer string, amount double")
    found = messages.select("timestamp", order.alias("order")).where("order.customer is not null")
    return found.select("timestamp", "order.*")


@dp.table
def orders() -> DataFrame:
    """All orders, as they were."""
    return parsed()


def totals_of(frame: DataFrame) -> DataFrame:
    """Totals per customer and minute."""
    totals = frame.groupBy(f.window("timestamp", "1 minute"), "customer").agg(
        f.sum("amount").alias("amount"), f.count("*").alias("orders")
    )
    return totals.select(f.col("window.start").alias("minute"), "customer", "amount", "orders")


@dp.materialized_view
def totals() -> DataFrame:
    """All minutes so far, also the present one."""
    return totals_of(spark.read.table("orders"))


dp.create_sink("totals_topic", "stentor", {"topic": "totals"})


@dp.append_flow(target="totals_topic")
def publish_totals() -> DataFrame:
    """Minutes that are over, each once."""
    finished = totals_of(parsed().withWatermark("timestamp", "10 seconds"))
    value = f.to_json(f.struct("minute", "customer", "amount", "orders"))
    return finished.select(f.col("customer").alias("key"), value.alias("value"))
