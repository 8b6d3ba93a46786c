"""A broker for the tests of a module that leave it as they found it, and a client of it."""

import pytest

from stentor.testing import broker


@pytest.fixture(scope="module")
def shared():
    with broker() as local:
        yield local


@pytest.fixture
def client(shared):
    with shared.client() as connected:
        yield connected
