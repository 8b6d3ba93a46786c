"""Clients of Spark's processes, which come and go while a query runs."""

from __future__ import annotations

import threading

import pytest

from stentor.errors import ConnectionFailed
from stentor.spark import connections
from stentor.spark.connections import SparkConnection
from stentor.spark.options import read_options, write_options
from stentor.testing import LocalBroker


@pytest.fixture
def stopped():
    """A broker that does not run, but whose address is known."""
    local = LocalBroker().start()
    local.stop()
    yield local
    local.cleanup()


def test_a_process_of_a_stream_that_begins_while_no_broker_runs_waits_for_one(stopped, monkeypatch):
    tried = threading.Event()
    connect = connections.stentor.connect

    def told(*given, **options):
        tried.set()
        return connect(*given, **options)

    monkeypatch.setattr(connections.stentor, "connect", told)
    back = threading.Thread(target=lambda: tried.wait(10) and stopped.start())
    back.start()
    client = SparkConnection(stopped.url, 30.0, patient=True).client()
    back.join()
    assert client.topics() == []
    client.close()


def test_it_does_not_wait_for_ever(stopped):
    with pytest.raises(ConnectionFailed, match="cannot be reached"):
        SparkConnection(stopped.url, 0.3, patient=True).client()


def test_a_person_hears_of_a_wrong_address_at_once(stopped, monkeypatch):
    monkeypatch.setattr(connections.time, "sleep", lambda _: pytest.fail("it waits"))
    with pytest.raises(ConnectionFailed, match="cannot be reached"):
        SparkConnection(stopped.url, 30.0).client()


def test_streams_and_writes_that_may_be_repeated_are_patient():
    def patient(options):
        return options.connection.patient

    assert patient(read_options({"subscribe": "t"}, streaming=True))
    assert not patient(read_options({"subscribe": "t"}, streaming=False))
    assert patient(write_options({"topic": "t"}, streaming=True))
    assert patient(write_options({"topic": "t", "txnAppId": "a", "txnVersion": "1"}, streaming=False))
    assert not patient(write_options({"topic": "t"}, streaming=False))
