"""`stentor work`: a function is called with every message, and a signal ends it gracefully."""

import os
import signal

import pytest

from stentor.cli.work import progress_line

HANDLER = """
import os, pathlib, threading

def handle(message):
    if message.value == b"slow":
        pathlib.Path("begun").touch()
        threading.Event().wait(0.5)
    if message.value == b"bad":
        raise ValueError("bad")
    with open("done", "a") as lines:
        lines.write(message.value.decode() + "\\n")

def handle_all(messages):
    for message in messages:
        handle(message)
"""


@pytest.fixture
def jobs(client, tmp_path):
    client.create_topic("jobs", partitions=2)
    (tmp_path / "my_jobs.py").write_text(HANDLER)
    yield client
    client.delete_topic("jobs")
    for group in client.groups():
        client.delete_group(group.name)


def wait_for(process, condition):
    """Until a condition holds; the process must not have ended before."""
    while not condition():
        assert process.poll() is None, process.communicate()
    return True


def lines(tmp_path):
    file = tmp_path / "done"
    return file.read_text().splitlines() if file.exists() else []


@pytest.mark.parametrize(
    "options",
    [
        ("--workers", "2", "--order", "key"),
        ("--mode", "thread"),
        ("--mode", "thread", "--workers", "2", "--order", "none"),
    ],
)
def test_work_is_done_until_a_signal_and_what_is_in_work_finished(jobs, shell, tmp_path, options):
    for number in range(20):
        jobs.publish("jobs", str(number), key=str(number))
    process = shell("work", "jobs", "my_jobs:handle", "--group", "g", *options, cwd=tmp_path)
    wait_for(process, lambda: len(lines(tmp_path)) == 20)
    jobs.publish("jobs", "slow", key="a")
    wait_for(process, (tmp_path / "begun").exists)
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=30)
    assert process.returncode == 0, told
    assert b"21 messages done, 0 failed, 0 left" in told
    assert sorted(lines(tmp_path)) == sorted([*map(str, range(20)), "slow"])
    assert jobs.describe_group("g").lag == 0


@pytest.fixture
def queue(client, tmp_path):
    client.create_topic("work.jobs", kind="queue", max_attempts=2, retry_delay_ms=1)
    (tmp_path / "my_jobs.py").write_text(HANDLER)
    with client.queue("work.jobs") as found:
        yield found
    client.delete_topic("work.jobs")


@pytest.mark.parametrize("options", [("--workers", "2"), ("--mode", "thread"), ("--batch", "5", "--mode", "thread")])
def test_a_queue_needs_no_group(client, queue, shell, tmp_path, options):
    queue.put_many([*(str(number) for number in range(20)), "bad"])
    handler = "handle_all" if "--batch" in options else "handle"
    process = shell("work", "work.jobs", f"my_jobs:{handler}", *options, cwd=tmp_path)
    wait_for(process, lambda: client.describe_queue("work.jobs").died)
    queue.put("slow")
    wait_for(process, (tmp_path / "begun").exists)
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=30)
    assert process.returncode == 0, told
    assert b"0 left" in told
    assert b"jobs done, " in told
    if "--batch" not in options:
        assert b"21 jobs done, 2 failed, 0 left" in told
        assert sorted(lines(tmp_path)) == sorted([*map(str, range(20)), "slow"])


SLOW_TO_LOAD = """
import pathlib, time

pathlib.Path("loading").touch()
time.sleep(600)

def handle(message):
    pass
"""


@pytest.mark.parametrize("to_group", [True, False])
@pytest.mark.parametrize("options", [("work.jobs", "--workers", "2"), ("jobs", "--group", "g", "--mode", "process")])
def test_a_signal_ends_it_while_its_processes_load_the_handler(jobs, queue, shell, tmp_path, options, to_group):
    """Ctrl-C, and many that stop services, send the signal to the whole group of processes."""
    (tmp_path / "slow_to_load.py").write_text(SLOW_TO_LOAD)
    name, *others = options
    process = shell("work", name, "slow_to_load:handle", *others, cwd=tmp_path, start_new_session=True)
    wait_for(process, (tmp_path / "loading").exists)
    (os.killpg if to_group else os.kill)(process.pid, signal.SIGTERM)
    _, told = process.communicate(timeout=30)
    assert process.returncode == 0, told
    assert b" 0 left" in told


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("work.jobs", "--group", "g"), "work.jobs is a queue, and --group is for topics"),
        (("work.jobs", "--dead-letters", "d"), "work.jobs is a queue, and --dead-letters is for topics"),
        (("work.jobs", "--order", "key"), "by the setting ordered_by"),
        (("work.jobs,jobs", "--group", "g"), "work.jobs is a queue, and was named with others"),
        (("jobs",), "jobs is a topic, and no --group was given"),
        (("jobs,other*",), "These are topics, and no --group was given"),
        (("jobs", "--group", "g", "--prefetch", "3"), "--prefetch is for queues"),
        (("work.jobs", "--mode", "fibre"), "mode='fibre' is unknown"),
    ],
)
def test_queues_and_topics_are_told_apart(jobs, queue, cli, arguments, said):
    outcome = cli("work", arguments[0], "my_jobs:handle", *arguments[1:])
    assert outcome.code == 2
    assert said in outcome.err


def test_a_topic_that_does_not_exist_and_no_group(cli):
    outcome = cli("work", "work.missing", "my_jobs:handle")
    assert outcome.code != 0
    assert "work.missing" in outcome.err


def test_failures_end_it_or_become_dead_letters(jobs, shell, tmp_path):
    jobs.publish("jobs", "bad")
    process = shell("work", "jobs", "my_jobs:handle", "--group", "g", cwd=tmp_path)
    _, told = process.communicate(timeout=30)
    assert process.returncode == 1
    assert b"The handler raised ValueError for jobs/" in told
    options = ("--group", "g", "--dead-letters", "jobs.dead", "--batch", "10")
    process = shell("work", "jobs", "my_jobs:handle_all", *options, cwd=tmp_path)
    jobs.create_topic("jobs.dead")
    wait_for(process, lambda: [message.value for message in jobs.read("jobs.dead")] == [b"bad"])
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"1 failed" in told


@pytest.mark.parametrize("mode", ["thread", "process"])
def test_failed_attempts_are_shown_with_their_tracebacks(jobs, queue, shell, tmp_path, mode):
    jobs.publish("jobs", "bad")
    queue.put("bad")
    of_topic = ("work", "jobs", "my_jobs:handle", "--group", "g", "--on-error", "skip", "--mode", mode)
    of_queue = ("work", queue.name, "my_jobs:handle", "--mode", mode)
    for arguments, place in ((of_topic, "message jobs/"), (of_queue, f"attempt 1 of job {queue.name}/")):
        process = shell(*arguments, cwd=tmp_path)
        lines = [process.stderr.readline().decode()]
        while "ValueError: bad" not in lines[-1]:
            assert lines[-1], lines
            lines.append(process.stderr.readline().decode())
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        assert any(line.startswith(f"stentor: {place}") for line in lines)
        assert any("in handle" in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("my_jobs:missing",), "cannot be imported"),
        (("nothing",), "does not name a handler"),
        (("my_jobs:handle", "--order", "colour"), "Use partition, key or none"),
        (("my_jobs:handle", "--mode", "fibre"), "mode='fibre' is unknown"),
        (("my_jobs:handle", "--on-error", "cry"), "on_error='cry' is unknown"),
    ],
)
def test_mistakes_are_told(jobs, cli, arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = cli("work", "jobs", *arguments, "--group", "g")
    assert outcome.code == 2
    assert said in outcome.err


def test_the_line_of_progress_says_what_counts():
    counted = {"done": 12345, "failed": 2, "in_work": 3, "waiting": 4, "workers_died": 1, "lag": 5}
    assert progress_line(counted, 99.4) == "12,345 done  99/s  3 in work  lag 5  2 failed  1 workers died"


def test_the_line_of_progress_of_a_queue():
    counted = {"done": 1, "failed": 0, "in_work": 3, "waiting": 4, "workers_died": 0}
    assert progress_line(counted, 1) == "1 done  1/s  3 in work  4 waiting here"
