"""The examples of queues that `help()` shows; a test runs them."""

from __future__ import annotations

from typing import Final

QUEUE_EXAMPLES: Final = {
    "Client.queues": """\
found = client.queues()
for each in found:
    print(each.name, each.waiting, each.held)
""",
    "Client.describe_queue": """\
with client.queue("jobs.described") as queue:
    queue.put("job")
found = client.describe_queue("jobs.described")
print(found.waiting, found.held)
""",
    "Client.queue": """\
with client.queue("jobs") as queue:
    queue.put("resize 7.png")
    for job in queue:  # done when the next one is asked for
        print(job.value, job.attempt)
        break
""",
    "Queue.put": """\
with client.queue("jobs.put") as queue:
    queue.put("remind customer 42", delay=3600)
    queue.put("print invoice 7", unique="invoice 7", priority=5)
""",
    "Queue.put_many": """\
with client.queue("jobs.put_many") as queue:
    queue.put_many([b"one", b"two"], priority=5)
""",
    "Queue.get": """\
with client.queue("jobs.get") as queue:
    queue.put("job")
    job = queue.get(timeout=5)
    queue.ack(job)
""",
    "Queue.ack": """\
with client.queue("jobs.ack") as queue:
    queue.put("job")
    job = queue.get(timeout=5)
    queue.ack(job)
""",
    "Queue.nack": """\
with client.queue("jobs.nack") as queue:
    queue.put("job")
    job = queue.get(timeout=5)
    queue.nack(job, delay=60, error="the printer is out of paper")
""",
    "Queue.extend": """\
with client.queue("jobs.extend") as queue:
    queue.put("job")
    job = queue.get(timeout=5)
    queue.extend(job, 600)
    queue.ack(job)
""",
    "Queue.redrive": """\
with client.queue("jobs.redrive") as queue:
    print(queue.redrive(), "dead letters are jobs again")
""",
    "Queue.describe": """\
with client.queue("jobs.describe") as queue:
    found = queue.describe()
    print(found.waiting, found.held)
""",
    "Queue.peek": """\
with client.queue("jobs.peek") as queue:
    queue.put("job")
    peeked = queue.peek(5)
    for each in peeked:
        print(each.state, each.attempts, each.message.value)
""",
    "Queue.purge": """\
with client.queue("jobs.purge") as queue:
    print(queue.purge(), "jobs are gone")
""",
    "Queue.statistics": """\
with client.queue("jobs.statistics") as queue:
    print(queue.statistics()["held"])
""",
    "Queue.run": """\
def handle(job):
    print(job.value, job.attempt)
    queue.stop()

with client.queue("jobs.run") as queue:
    queue.put("resize 7.png")
    queue.run(handle, workers=4)
""",
    "Queue.stop": """\
with client.queue("jobs.stop") as queue:
    queue.put("job")
    queue.run(lambda job: queue.stop())
""",
}
