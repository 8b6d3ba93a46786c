"""Publish a few messages, listen to them, read them again. Start a broker first: `stentor serve`."""

import stentor

with stentor.connect() as client:
    for number, city in enumerate(("Paris", "Rome", "Vienna")):
        receipt = client.publish("quickstart.cities", city, key=str(number))
        print(f"published {city} at partition {receipt.partition}, offset {receipt.offset}")

    # A subscription starts where it is told to, and goes on for ever; we take three messages.
    with client.subscribe("quickstart.*", start=stentor.Last(3)) as subscription:
        for _ in range(3):
            message = subscription.get(timeout=5)
            value, key = message.value or b"", message.key or b""  # a message may have neither
            print(f"received {value.decode()} with key {key.decode()}")

    # A read is bounded: it ends at "now".
    print("the topic holds", sum(1 for _ in client.read("quickstart.cities")), "messages")
