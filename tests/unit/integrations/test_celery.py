"""Celery's own worker on a real broker, with both of its usual pools."""

import signal
import time

import pytest

celery = pytest.importorskip("celery")

APPLICATION = """
import sys
from celery import Celery
from celery.exceptions import Reject
from stentor.integrations.kombu import Transport

app = Celery("app", broker=os.environ["URL"])
app.conf.update(
    broker_transport="stentor.integrations.kombu:Transport",
    broker_transport_options={"queue_settings": {"lease_s": 1, "max_attempts": 3, "retry_delay_ms": 10}},
    broker_connection_retry_on_startup=True,
    task_default_queue=os.environ["QUEUE"],
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=2,
)

@app.task(name="work")
def work(number):
    note(f"begin-{number}")
    if number == 0:
        wait_for_go()
    note(f"end-{number}")

@app.task(name="timed")
def timed():
    note(str(time.time()))

@app.task(name="fail", bind=True, max_retries=2, default_retry_delay=0.1)
def fail(self):
    note(f"try-{self.request.retries}")
    try:
        raise ValueError("no good")
    except ValueError as error:
        raise self.retry(exc=error)

@app.task(name="rejected", bind=True)
def rejected(self, requeue):
    note(f"reject-{requeue}-{self.request.delivery_info['redelivered']}")
    raise Reject("spoilt", requeue=requeue)

@app.task(name="die")
def die():
    note("die")
    os._exit(1)

@app.task(name="deadly")
def deadly(number):
    note(f"begin-{number}")
    if number == 0:
        time.sleep(0.5)
        os.killpg(os.getpgid(os.getppid() if "prefork" in sys.argv else 0), 9)
    note(f"end-{number}")

@app.task(name="parent")
def parent(number):
    work.delay(number)
"""

QUIET = ("--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "INFO")


@pytest.fixture
def app(workplace, monkeypatch):
    workplace.write(APPLICATION)
    loaded = workplace.load(monkeypatch)
    yield loaded
    loaded.app.close()


@pytest.fixture
def start(workplace):
    def start(pool="prefork", concurrency=2):
        return workplace.start(
            "celery",
            "-A",
            workplace.module,
            "worker",
            "-P",
            pool,
            "-c",
            str(concurrency),
            *QUIET,
            "-n",
            f"w{time.time()}",
        )

    return start


def finish(workplace, numbers, wait_until):
    everything = {f"end-{number}" for number in numbers}
    wait_until(lambda: everything <= set(workplace.notes()), "the worker finishes", seconds=30)


def kill_one_and_finish(app, start, workplace, wait_until, pool):
    for number in range(20):
        app.work.delay(number)
    first = start(pool)
    wait_until(lambda: "begin-0" in workplace.notes(), "the first worker begins", seconds=30)
    workplace.stop(first)
    assert "end-0" not in workplace.notes()
    workplace.go()
    second = start(pool)
    finish(workplace, range(20), wait_until)
    return second


def test_a_killed_worker_loses_nothing(app, start, workplace, client, name, wait_until):
    kill_one_and_finish(app, start, workplace, wait_until, "prefork")
    app.parent.delay(20)
    finish(workplace, [20], wait_until)
    wait_until(lambda: client.queue(name).describe().finished == 22, "all are acknowledged")
    assert workplace.notes().count("end-20") == 1


@pytest.mark.long
def test_a_killed_worker_without_children_loses_nothing(app, start, workplace, client, name, wait_until):
    worker = kill_one_and_finish(app, start, workplace, wait_until, "solo")
    wait_until(lambda: client.queue(name).describe().finished == 20, "all are acknowledged")
    workplace.stop(worker, signal.SIGTERM)
    assert worker.returncode == 0


def test_delays_retries_and_rejections(app, start, workplace, client, name, wait_until, letters):
    sent = time.time()
    app.timed.apply_async(countdown=1.5)
    app.fail.delay()
    app.rejected.delay(requeue=False)
    app.rejected.delay(requeue=True)
    start("solo")
    reasons = [dict(letter.headers) for letter in letters(name, 2)]
    wait_until(lambda: client.queue(name).describe().waiting == 0, "the delayed one is done")
    wait_until(lambda: client.queue(name).describe().held == 0, "the delayed one is done")
    notes = workplace.notes()
    assert [note for note in notes if note.startswith("try")] == ["try-0", "try-1", "try-2"]
    assert [note for note in notes if "reject-False" in note] == ["reject-False-False"]
    assert [note for note in notes if "reject-True" in note] == ["reject-True-False", *["reject-True-True"] * 2]
    assert sorted(said["stentor-dead-attempts"] for said in reasons) == [b"1", b"3"]
    (ran,) = [float(note) for note in notes if "." in note]
    assert ran - sent >= 1.5


@pytest.mark.long
@pytest.mark.timeout(120)
def test_a_task_that_kills_its_process_is_tried_again_and_then_dead(app, start, workplace, name, letters):
    """Celery takes ten seconds to notice each time."""
    app.die.delay()
    start("prefork")
    (letter,) = letters(name)
    assert dict(letter.headers)["stentor-dead-attempts"] == b"3"
    assert workplace.notes().count("die") == 3


@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_what_a_dying_worker_only_held_is_no_attempt(app, workplace, client, name, letters, pool):
    """A task that kills the whole worker dies after its attempts; those that wait behind it do not."""
    for number in range(6):
        app.deadly.delay(number)

    def done():
        ended = {f"end-{number}" for number in range(1, 6)} <= set(workplace.notes())
        return ended and client.queue(name).describe().died == 1

    arguments = ("-A", workplace.module, "worker", "-P", pool, "-c", "1", "--prefetch-multiplier", "10", *QUIET)
    died = workplace.start_until(done, "celery", *arguments)
    (letter,) = letters(name)
    assert dict(letter.headers)["stentor-dead-attempts"] == b"3"
    assert died == workplace.notes().count("begin-0") == 3
