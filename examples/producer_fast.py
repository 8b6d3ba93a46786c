"""Send many messages with a producer, and say how many a second were acknowledged.

    python examples/producer_fast.py [MESSAGES] [BYTES]

A producer makes batches by itself: `send` only hands a message over, and waits when too much is unacknowledged.
`make bench` measures with more care than this does.
"""

import sys
import time

import stentor

count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
value = b"x" * (int(sys.argv[2]) if len(sys.argv) > 2 else 100)

with stentor.connect(name="producer_fast") as client:
    started = time.perf_counter()
    try:
        with client.producer("examples.fast") as producer:
            for _ in range(count):
                producer.send(value, b"key")
    except stentor.PublishError as error:
        # What failed is listed batch by batch; everything else was acknowledged.
        for batch in error.failed:
            print(f"{batch.count} messages to partition {batch.partition}: {batch.error}", file=sys.stderr)
        sys.exit(1)
    seconds = time.perf_counter() - started
    acknowledged = producer.statistics()["messages_acknowledged"]
    print(f"{acknowledged} messages acknowledged, {acknowledged / seconds:,.0f} a second")
