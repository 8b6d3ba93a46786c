"""The name under which Spark finds the data source by itself: any module called ``pyspark_*`` with a DefaultSource."""

from stentor.spark.source import StentorDataSource as DefaultSource

__all__ = ["DefaultSource"]
