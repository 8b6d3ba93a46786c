"""A stateful stream whose driver and whose brokers are killed; `python -m tests.spark.exactly_once` kills more."""

from __future__ import annotations

import pytest
from tests.spark import exactly_once


@pytest.mark.long
@pytest.mark.timeout(400)
def test_every_row_comes_out_once_although_the_driver_and_brokers_are_killed(tmp_path):
    figures = exactly_once.run(2, seed=1, folder=tmp_path, per_second=200, cores=1)
    assert figures["rows"] > 0
    assert figures["driver_kills"] == 2
