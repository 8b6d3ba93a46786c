"""`stentor broker rotate-secret`: a new secret for the brokers of a cluster."""

import pytest

from stentor.cli.app import run
from stentor.testing import broker
from stentor.testing.etcd import LocalEtcd


@pytest.fixture(scope="module")
def etcd():
    with LocalEtcd() as started:
        yield started


def test_running_brokers_get_a_new_secret(etcd, capsys, wait_until):
    with broker(coordination=etcd.url, broker_id="b0") as local:
        (first,) = local.inner.parts.cluster.trust.secrets
        assert run(["broker", "rotate-secret", "--coordination", etcd.url]) == 0
        wait_until(lambda: len(local.inner.parts.cluster.trust.secrets) == 2, "the rotation is heard")
        assert local.inner.parts.cluster.trust.secrets[1] == first
        said = capsys.readouterr()
        assert "new secret" in said.out
        assert run(["broker", "rotate-secret", "--coordination", etcd.url]) != 0
        assert "rotated less than 60 s ago" in capsys.readouterr().err
        assert len(local.inner.parts.cluster.trust.secrets) == 2


def test_the_store_is_found_as_a_broker_finds_it(etcd, tmp_path, capsys):
    file = tmp_path / "stentor.toml"
    file.write_text(f'coordination = "{etcd.url}/empty"\n')
    assert run(["broker", "rotate-secret", "--config", str(file)]) != 0
    assert "no cluster" in capsys.readouterr().err


def test_without_a_store_it_says_what_to_name(capsys, monkeypatch):
    monkeypatch.delenv("STENTOR_COORDINATION", raising=False)
    assert run(["broker", "rotate-secret"]) != 0
    assert "--coordination" in capsys.readouterr().err
