"""A broker whose clock jumps, by libfaketime; the monotonic clock goes on, as it does on a real machine."""

from __future__ import annotations

import glob

import pytest

pytestmark = pytest.mark.slow

LIBRARY = next(iter(sorted(glob.glob("/usr/lib/*/faketime/libfaketime.so.1"))), None)  # noqa: PTH207 - two levels


@pytest.mark.skipif(LIBRARY is None, reason="libfaketime is not installed (Debian: faketime)")
@pytest.mark.long
def test_the_clock_of_the_head_jumps_ahead_and_back(three, load, tmp_path):
    offset = tmp_path / "offset"
    offset.write_text("+0\n")
    with load(three, partitions=6) as flow:
        name = flow.chains()[0][0]
        broker = three.brokers[name]
        three.terminate(name)
        plain = broker._prefix
        broker._prefix = [
            *plain,
            "env",
            f"LD_PRELOAD={LIBRARY}",
            f"FAKETIME_TIMESTAMP_FILE={offset}",
            "FAKETIME_NO_CACHE=1",
            "FAKETIME_DONT_FAKE_MONOTONIC=1",
        ]
        try:
            three.restart(name)
            flow.wait_until_whole()
            flow.wait_for(lambda: name in {chain[0] for chain in flow.chains()}, f"{name} to be the head of something")
            for jump in ("+3600", "-7200", "+0"):
                offset.write_text(f"{jump}\n")
                flow.wait_for_acks(10)
        finally:
            broker._prefix = plain
            three.terminate(name)
            three.restart(name)
        flow.wait_until_whole()
    assert flow.errors == []
