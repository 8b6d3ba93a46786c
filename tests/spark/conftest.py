"""One Spark session and one broker for all tests of this folder: starting either anew would take most of the time."""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.standalone import QUICK_JAVA

from stentor import limits
from stentor.testing import LocalBroker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from stentor import Client

_HERE = Path(__file__).parent
_TIMEOUT_S = 240
_numbers = itertools.count()


def pytest_configure(config: pytest.Config) -> None:
    """What PySpark itself warns of is not ours to mend."""
    for ignored in ("ignore:PySpark does not yet fully support pandas:FutureWarning",):
        config.addinivalue_line("filterwarnings", ignored)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first job of a session takes long, and an interrupted call would spoil the connection to the JVM."""
    for item in items:
        if item.path.is_relative_to(_HERE) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_TIMEOUT_S))


@pytest.fixture(scope="session")
def broker() -> Iterator[LocalBroker]:
    """It looks for expired segments often, and they are small."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "RETENTION_CHECK_S", 0.1)
        running = LocalBroker(segment_bytes=limits.SEGMENT_BYTES_MIN).start()
    yield running
    running.cleanup()


@pytest.fixture(scope="session")
def client(broker: LocalBroker) -> Iterator[Client]:
    with broker.client() as connected:
        yield connected


@pytest.fixture(autouse=True)
def _url(broker: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is not told otherwise uses the shared broker."""
    monkeypatch.setenv("STENTOR_URL", broker.url)


@pytest.fixture(scope="session")
def spark(broker: LocalBroker) -> Iterator[SparkSession]:
    """A session whose workers use the shared broker, too."""
    from stentor.spark import session

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("STENTOR_URL", broker.url)
        patch.setenv("JAVA_HOME", os.environ.get("JAVA_HOME", ""))
        patch.setenv("JDK_JAVA_OPTIONS", QUICK_JAVA)
        running = session("local[2]", ui=False, config={"spark.driver.memory": "1g"})
    yield running
    running.stop()


@pytest.fixture
def topic() -> str:
    """A name that no other test has."""
    return f"topic-{next(_numbers)}"


@pytest.fixture
def read(spark: SparkSession) -> Callable[..., list[tuple]]:
    """Rows of a batch read as plain tuples."""

    def load(*columns: str, **options: object) -> list[tuple]:
        frame = spark.read.format("stentor").options(**options).load()
        return [tuple(row) for row in frame.select(*columns).collect()]

    return load
