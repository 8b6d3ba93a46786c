"""Replays that are killed at twenty places and paused at others; `python -m tests.spark.killed_replays` kills more."""

from __future__ import annotations

import pytest
from tests.spark import killed_replays


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("speed", "rows"), [(1.0, 60_000), (0.0, 3_900_000)], ids=["paced", "full speed"])
def test_every_row_is_published_once_although_the_replay_is_killed_at_twenty_places(tmp_path, speed, rows):
    figures = killed_replays.run(20, seed=1, speed=speed, rows=rows, folder=tmp_path)
    assert figures["rows"] == rows
    assert figures["moved on"] > 1
    assert figures["refused"] > 0
