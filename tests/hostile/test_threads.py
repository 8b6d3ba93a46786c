"""The first use of a decoder in many threads at once; native code answers a mistake here with a crash."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys, threading
sys.setswitchinterval(1e-6)
{prepare}
barrier, failures = threading.Barrier(8), []

def work():
    barrier.wait()
    try:
        {use}
    except BaseException as error:
        failures.append(error)

threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
if failures:
    raise failures[0]
"""

FIRST_USES = {
    "a control message": (
        """
from stentor.wire import messages
info = messages.BrokerInfo(id="b", cluster_id="c", version="1", address="h:1")
body = messages.encode(messages.RouteTable(version=1, brokers=[info], topics=[]))
""",
        "messages.decode(body, messages.Response)",
    ),
    "topic settings": (
        "from stentor.wire import messages",
        "messages.merge_settings(messages.TopicSettings(), messages.topic_changes({'partitions': 3}))",
    ),
    "a snapshot of producers": (
        """
from stentor.core.dedupe import Dedupe
dedupe = Dedupe()
dedupe.record(7, 0, 0, 1, 0, 1, 5)
snapshot = dedupe.snapshot()
""",
        "Dedupe().restore(snapshot)",
    ),
    "the index of a segment": (
        """
from stentor.storage.index import SparseIndex, decode_index, encode_index
from stentor.storage.model import Identity
data = encode_index(SparseIndex(), Identity(1, 0, 2), base=0, end=0, data_bytes=64, file_bytes=64)[1]
""",
        "decode_index(data, what='the index')",
    ),
    "a record of damage": (
        """
import tempfile
from pathlib import Path
from stentor.storage import damage
from stentor.storage.files import FileKind, seal
from stentor.storage.segment import DAMAGED_SUFFIX, segment_path
directory = Path(tempfile.mkdtemp())
segment_path(directory, 0, DAMAGED_SUFFIX).write_bytes(seal(FileKind.DAMAGE, b"[]"))
""",
        "assert damage.load_damage(directory, 0) == ()",
    ),
}


def run(prepare, use, clean_up=""):
    program = PROGRAM.format(prepare=prepare, use=use) + clean_up
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=50)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(("prepare", "use"), FIRST_USES.values(), ids=FIRST_USES)
def test_the_first_use_in_many_threads_at_once_does_not_crash(prepare, use):
    for _ in range(4):
        run(prepare, use)


def test_a_typed_topic_opened_in_many_threads_at_once_does_not_crash():
    prepare = """
import msgspec
from stentor.client.typed import Codec
class Address(msgspec.Struct):
    street: str
    city: str
class Order(msgspec.Struct):
    id: int
    to: Address
    previous: "Order | None" = None
"""
    for _ in range(8):
        run(prepare, 'Codec(Order, \'json\', \'raise\').decode(b\'{"id": 1, "to": {"street": "a", "city": "b"}}\')')


def test_many_threads_can_connect_their_first_client_at_once():
    run(
        "from stentor.testing import LocalBroker\nimport stentor\nlocal = LocalBroker().start()",
        "client = stentor.connect(local.url); client.publish('t', b'x'); client.close()",
        "local.cleanup()",
    )
