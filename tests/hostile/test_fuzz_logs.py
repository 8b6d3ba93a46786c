"""A few of the logs of which `make fuzz-logs` fills a hundred of each kind."""

import pytest
from tests.hostile import fuzz_logs

from stentor.core.derived import States
from stentor.errors import CorruptData


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_brokers_live_with_whatever_a_log_holds():
    found = fuzz_logs.run(logs=1, records=150, seed=3)
    assert found["logs"] == len(fuzz_logs.KINDS)
    assert found["passed_over"] > 0


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_brokers_live_with_whatever_many_logs_hold():
    assert fuzz_logs.run(logs=8, records=1_000, seed=4)["logs"] == 8 * len(fuzz_logs.KINDS)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_fold_that_is_not_total_is_found(monkeypatch):
    monkeypatch.setattr(States, "_fold", lambda _, state, batch, body: state.apply(batch, body))
    with pytest.raises(CorruptData):
        fuzz_logs.run(logs=1, records=300, seed=3, kinds=["table"])
