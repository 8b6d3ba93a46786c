"""Values with a type: encoded when they are published, decoded and checked when they are read."""

import msgspec

import stentor


class Order(msgspec.Struct):
    """An order, as it travels: JSON by default, MessagePack with format="msgpack"."""

    id: str
    total: float
    lines: list[str] = []


with stentor.connect() as client:
    orders = client.topic("examples.orders", type=Order)
    with orders.producer() as producer:
        for number in range(3):
            producer.send(Order(f"o-{number}", total=10.0 * number, lines=["tea"] * number), key=f"o-{number}")

    # Somebody publishes what is not an order.
    client.publish("examples.orders", "not an order")

    try:
        for message in orders.read():
            print(message.offset, message.value)
    except stentor.DecodeFailed as error:
        print(f"stopped: {error.message}")

    # A reader may choose to skip such values, or to get their bytes.
    forgiving = client.topic("examples.orders", type=Order, on_error="skip")
    print("total:", sum(message.value.total for message in forgiving.read()))
