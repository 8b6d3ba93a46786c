"""A running stream whose brokers are killed; `python -m tests.spark.killed_brokers` kills more."""

from __future__ import annotations

import pytest
from tests.spark import killed_brokers


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("brokers", [1, 3])
def test_a_query_survives_its_brokers_and_writes_every_row_once(tmp_path, brokers):
    figures = killed_brokers.run(15, brokers=brokers, seed=brokers, folder=tmp_path)
    assert figures["rows"] > 0
