"""A pool of workers on a queue: four jobs at a time, and what fails is tried again.

Every invoice is a job. One of them meets a printer without paper at its first attempt: it is handed out again after a
pause, while the others go on.
"""

import threading

import stentor

INVOICES = 20

with stentor.connect() as client:
    client.create_topic("examples.invoices", kind="queue")
    printed: list[str] = []
    lock = threading.Lock()

    def handle(job: stentor.Job) -> None:
        """Returns when the job is done. If it raised, the job would have failed; this one says it by itself."""
        invoice = (job.value or b"").decode()
        if invoice == "invoice 7" and job.attempt == 1:
            queue.nack(job, delay=0.1, error="the printer is out of paper", wait=False)
            return
        with lock:
            printed.append(f"{invoice} at attempt {job.attempt}")
            if len(printed) == INVOICES:
                queue.stop()

    with client.queue("examples.invoices") as queue:
        queue.put_many([f"invoice {number}" for number in range(INVOICES)])
        queue.run(handle, workers=4)

    print(f"{len(printed)} invoices are printed; the last one is {printed[-1]}")
