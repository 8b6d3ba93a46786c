"""The Suicidal Snail: a subscriber that would rather die than be late.

A price that is a thousand messages old is worse than none. This subscriber says how late it may be; past that it raises
SlowSubscriber and stops, after telling the alerts topic, so that somebody notices.
"""

import stentor

MAX_LAG = 1_000
FLOOD = 5_000

with (
    stentor.connect(name="snail") as client,
    client.subscribe("_alerts") as alerts,
    client.subscribe("examples.prices", on_slow="raise", max_lag=MAX_LAG) as prices,
):
    # While our snail thinks, the market moves on.
    with client.producer("examples.prices", batch_messages=500) as producer:
        for number in range(FLOOD):
            producer.send(str(number))

    seen = 0
    try:
        for _ in prices:
            seen += 1
    except stentor.SlowSubscriber as error:
        print(f"gave up after {seen} messages: {error.message}")

    print("alert:", (alerts.get(timeout=5).value or b"").decode())
