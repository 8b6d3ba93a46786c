import subprocess
import sys
import urllib.request

ASKED_AT_ONCE = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
from stentor.cli import cluster_status

BROKERS = 16
said = sys.stdin.buffer.read()
together = threading.Barrier(BROKERS)
sys.setswitchinterval(1e-6)

class Connection:
    status = 200
    def __init__(self, *_, **__): pass
    def request(self, *_): pass
    def getresponse(self): return self
    def close(self): pass
    def read(self):
        together.wait()
        return said

cluster_status.http.client.HTTPConnection = Connection
broker = {"state": "running", "http_address": "localhost:1"}
with ThreadPoolExecutor(BROKERS) as threads:
    list(threads.map(cluster_status._ask, [broker] * BROKERS))
"""


def test_brokers_that_answer_at_the_same_moment_do_not_crash_the_command(running_broker):
    """The first use of a type by msgspec must not happen in several threads at once."""
    with urllib.request.urlopen(f"{running_broker.http_url}/statistics", timeout=10) as answer:
        said = answer.read()
    done = subprocess.run([sys.executable, "-c", ASKED_AT_ONCE], input=said, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
