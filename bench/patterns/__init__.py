"""Tables and workers measured: ``python -m bench.patterns``, or ``make bench-patterns``.

    clone     a table of 1,000,000 keys copied by a new client, against Redis and NATS KV
    get       one key read from the copy, against a Redis GET
    large     10,000,000 keys: memory of the broker while loading and after a restart, memory of the client
    updates   10,000 updates/s that reach 50 copies
    faults    2,000 updates/s on three brokers while the head is killed and the tail is cut off
    requests  a request and its answer, against NATS core and Redis lists
    clients   10,000 clients that hold a copy each: memory, and the time until an update has reached all
    slow      100 subscribers beside one that is too slow, under each policy
    workers   messages through a group's `run`, one by one and in batches, and what a second process is worth
    queue     jobs taken and acknowledged one by one, against Redis, NATS and RabbitMQ
    tasks     `stentor work` on a queue, against Celery on Redis

Each work is a module with a function ``measure(plan, say)`` that returns rows. See bench/README.md.
"""
