"""The examples that `help()` shows, by class and method; a test runs them."""

from __future__ import annotations

from typing import Final

EXAMPLES: Final = {
    "connect": """\
with stentor.connect("stentor://localhost:7440", name="shop") as client:
    client.publish("orders.eu", "hello")
""",
    # --- clients --------------------------------------------------------------------------------
    "Client.publish": """\
receipt = client.publish("orders.eu", "hello", key="42", headers={"source": "shop"})
print(receipt.partition, receipt.offset)
""",
    "Client.producer": """\
with client.producer("orders.eu", compression="lz4") as producer:
    for number in range(1000):
        producer.send(f"order {number}", key=f"customer-{number % 7}")
""",
    "Client.subscribe": """\
with client.subscribe("orders.*", start="earliest") as subscription:
    for message in subscription:
        print(message.topic, message.offset, message.value)
        break
    stored = subscription.positions()
with client.subscribe("orders.*", start=stored) as subscription:  # goes on behind that message
    print(subscription.topics)
""",
    "Client.read": """\
history = client.read("orders.eu", start=timedelta(hours=-1), end="now")
for message in history:
    print(message.offset, message.value)
""",
    "Client.topic": """\
orders = client.topic("orders.typed", type=dict)
print(orders.name)
""",
    "Client.table": """\
client.create_topic("config", kind="table", exist_ok=True)
with client.table("config") as table:
    table.put("app/rate", "100")
    print(table["app/rate"], len(table))
""",
    "Client.tabular": """\
prices = client.tabular("prices", pa.schema([("name", pa.string()), ("price", pa.float64())]))
print(prices.schema.names)
""",
    "Client.request": """\
def price(request):
    return f"42 for {request.value.decode()}"

with client.serve("svc.price", price):
    reply = client.request("svc.price", "apples", timeout=5)
    print(reply.value)
""",
    "Client.request_stream": """\
def countdown(request):
    for number in range(int(request.value), 0, -1):
        yield str(number)

with client.serve("svc.countdown", countdown):
    for reply in client.request_stream("svc.countdown", "3", timeout=5):
        print(reply.value)
""",
    "Client.serve": """\
def greet(request):
    return b"hello " + request.value

with client.serve("svc.greet", greet, concurrency=4) as service:
    reply = client.request("svc.greet", "Anna")
    print(reply.value, service.statistics())
""",
    "Service.wait": """\
with client.serve("svc.greet", greet) as service:
    service.wait(timeout=0.01)  # without a timeout: until somebody closes it
""",
    "Service.statistics": """\
with client.serve("svc.greet", greet) as service:
    print(service.statistics()["answered"])
""",
    "Service.close": """\
service = client.serve("svc.greet", greet)
service.close()
""",
    "ReplyStream.get": """\
with client.serve("svc.countdown", countdown):
    stream = client.request_stream("svc.countdown", "3", timeout=5)
    print(stream.get(timeout=1).value)
""",
    "ReplyStream.close": """\
with client.serve("svc.countdown", countdown):
    stream = client.request_stream("svc.countdown", "3", timeout=5)
    stream.close()
""",
    "Client.create_topic": """\
made = client.create_topic("orders.us", partitions=4, retention_age_s=7 * 86_400, exist_ok=True)
print(made.settings.partitions)
""",
    "Client.alter_topic": """\
client.alter_topic("orders.eu", retention_bytes=10_000_000_000)
""",
    "Client.describe_topic": """\
described = client.describe_topic("orders.eu")
for partition in described.partitions:
    print(partition.partition, partition.start, partition.committed)
""",
    "Client.find_topic": """\
route = client.find_topic("orders.eu")
print(route.id, route.partitions[0].chain)
""",
    "Client.topics": """\
found = client.topics("orders.*")
print([topic.name for topic in found])
""",
    "Client.mark_recorded": """\
client.mark_recorded("orders.eu", {0: 1})
""",
    "Client.move_cursor": """\
client.move_cursor("orders.eu", "billing", {0: 1})
""",
    "Client.cursors": """\
found = client.cursors("orders.eu")
for cursor in found:
    print(cursor.name, cursor.positions, cursor.lag)
""",
    "Client.delete_cursor": """\
client.delete_cursor("orders.eu", "billing")
""",
    "Client.delete_topic": """\
client.create_topic("orders.old", exist_ok=True)
client.delete_topic("orders.old")
""",
    "Client.offsets": """\
ends = client.offsets("orders.eu")
yesterday = client.offsets("orders.eu", timedelta(days=-1))
print(ends[0] - yesterday[0], "messages since yesterday")
""",
    "Client.find_offsets": """\
found = client.find_offsets(["orders.*"], "earliest")
print(found["orders.eu"].id, found["orders.eu"].offsets)
""",
    "Client.brokers": """\
brokers = client.brokers()
print([broker.info.id for broker in brokers])
""",
    "Client.drain_broker": """\
client.drain_broker("b0")  # before it is taken away for good
""",
    "Client.forget_broker": """\
client.forget_broker("b0")
""",
    "Client.recover_partition": """\
recovered = client.recover_partition("orders.eu", 0)
print(recovered)
""",
    "Client.clients": """\
connected = client.clients()
print([each.name for each in connected])
""",
    "Client.statistics": """\
statistics = client.statistics()
print(sorted(statistics))
""",
    "Client.broker": """\
broker = client.broker()
print(broker.id)
""",
    # --- producers ------------------------------------------------------------------------------
    "Producer.send": """\
with client.producer("orders.eu") as producer:
    producer.send("one", key="42")
    producer.send("two", on_delivery=lambda receipt, error: print(error or receipt.offset))
""",
    "Producer.send_many": """\
with client.producer("orders.eu") as producer:
    producer.send_many([b"one", b"two"], [b"42", b"43"])
""",
    "Producer.send_batch": """\
table = pyarrow.table({"key": [b"42", b"43"], "value": [b"one", b"two"]})
with client.producer("orders.eu") as producer:
    producer.send_batch(table)
""",
    "Producer.flush": """\
with client.producer("orders.eu") as producer:
    producer.send("one")
    try:
        producer.flush(timeout=10)
    except stentor.PublishError as error:
        print([batch.error for batch in error.failed])
""",
    "Producer.statistics": """\
with client.producer("orders.eu") as producer:
    producer.send("one")
    producer.flush()
    print(producer.statistics()["messages_acknowledged"])
""",
    # --- subscriptions and reads ----------------------------------------------------------------
    "Client.group": """\
with client.group("billing", "orders.*") as group:
    for message in group:
        print(message.topic, message.offset, message.value)
        break
""",
    "Client.groups": """\
found = client.groups()
print([(group.name, len(group.members)) for group in found])
""",
    "Client.describe_group": """\
with client.group("billing", "orders.*"):
    info = client.describe_group("billing")
    print(info.lag, info.members)
""",
    "Client.reset_group": """\
with client.group("report", "orders.*"):
    pass
client.reset_group("report", "earliest")
""",
    "Client.delete_group": """\
with client.group("report", "orders.*"):
    pass
client.delete_group("report")
""",
    "Group.get": """\
with client.group("mail", "orders.*") as group:
    message = group.get(timeout=5)
    print(message.key, message.value)
""",
    "Group.batches": """\
with client.group("sums", "orders.*") as group:
    client.publish("orders.eu", "one more")
    for batch in group.batches():
        print(batch.num_rows, batch.schema.names)
        break
""",
    "Group.run": """\
def handle(message):
    print(message.value)
    raise ValueError("the handler ends the loop")

with client.group("stock", "orders.*") as group:
    try:
        group.run(handle)
    except ValueError as error:
        print(error)
""",
    "Group.stop": """\
with client.group("stock", "orders.*") as group:
    group.run(lambda message: group.stop(), workers=4, ordered_by="key")
""",
    "Group.statistics": """\
with client.group("stock", "orders.*") as group:
    print(group.statistics()["done"])
""",
    "Group.seek": """\
with client.group("stock", "orders.*") as group:
    group.seek("orders.eu", 0, "earliest")
""",
    "Group.pause": """\
with client.group("stock", "orders.*") as group:
    group.pause("orders.eu", 0)
    print(group.paused)
""",
    "Group.resume": """\
with client.group("stock", "orders.*") as group:
    group.pause()
    group.resume()
""",
    "Group.commit": """\
with client.group("audit", "orders.*", auto_commit=False) as group:
    message = group.get(timeout=5)
    print(message.value)
    group.commit()
""",
    "Group.transaction": """\
with client.group("invoicing", "orders.*") as group:
    message = group.get(timeout=5)
    with group.transaction() as out:
        out.send("invoices", message.value, key=message.key)
""",
    "Transaction.send": """\
with client.group("parcels", "orders.*") as group:
    message = group.get(timeout=5)
    with group.transaction() as out:
        out.send("parcels", message.value, key="eu")
        out.send("audit", "packed")
""",
    "Group.events": """\
with client.group("billing", "orders.*") as group:
    for event in group.events():
        print(event.kind, event.topic, event.partition)
""",
    "Group.lag": """\
with client.group("billing", "orders.*") as group:
    print(group.lag())
""",
    "Group.positions": """\
with client.group("billing", "orders.*") as group:
    print(group.positions())
""",
    "Subscription.get": """\
with client.subscribe("orders.*", start="earliest") as subscription:
    message = subscription.get(timeout=5)
    print(message.key, message.value)
""",
    "Subscription.batches": """\
with client.subscribe("orders.*", start="earliest") as subscription:
    for batch in subscription.batches():
        print(batch.num_rows, batch.schema.names)
        break
""",
    "Subscription.offset_batches": """\
with client.subscribe("orders.eu", partition=0, start="earliest") as subscription:
    for first, batch in subscription.offset_batches(appended_at=True):
        print(first, batch.num_rows)
        break
""",
    "Subscription.positions": """\
with client.subscribe("orders.*", start="earliest") as subscription:
    message = subscription.get(timeout=5)
    stored = json.dumps(subscription.positions())
with client.subscribe("orders.*", start=json.loads(stored)) as subscription:
    print(subscription.positions())
""",
    "Subscription.events": """\
with client.subscribe("orders.*", on_slow="skip", max_lag=10_000) as subscription:
    for event in subscription.events():
        print(event.kind, event.topic, event.partition)
""",
    "Subscription.statistics": """\
with client.subscribe("orders.*") as subscription:
    print(subscription.statistics()["lag"])
""",
    "History.batches": """\
history = client.read("orders.eu")
for batch in history.batches():
    print(batch.num_rows, batch.schema.names)
""",
    "History.offset_batches": """\
history = client.read("orders.eu", partition=0)
for first, batch in history.offset_batches():
    print(first, batch.num_rows)
""",
    "History.to_arrow": """\
history = client.read("orders.eu")
table = history.to_arrow()
print(table.num_rows)
""",
    "History.to_pandas": """\
history = client.read("orders.eu", limit=1000)
frame = history.to_pandas()
print(frame.groupby("key").size())
""",
    "History.to_polars": """\
history = client.read("orders.eu", limit=1000)
frame = history.to_polars()
print(frame.height)
""",
    # --- names ----------------------------------------------------------------------------------
    "Names.register": """\
names = client.names
names.register("billing/1", "10.0.0.5:80")
""",
    "Names.unregister": """\
names = client.names
names.unregister("billing/1")
""",
    "Names.resolve": """\
names = client.names
names.register("billing/1", "10.0.0.5:80")
names.register("billing/2", "10.0.0.6:80")
print(names.resolve("billing"), names.resolve("billing"))
""",
    "Names.resolve_all": """\
names = client.names
for name, address in (names.resolve_all("billing")).items():
    print(name, address)
""",
    "Names.watch": """\
names = client.names
with names.watch("billing") as watch:
    names.register("billing/3", "10.0.0.7:80")
    change = watch.get(timeout=5)
    print(change.name, change.old, change.new)
""",
    # --- tables ---------------------------------------------------------------------------------
    "Table.put": """\
with client.table("config") as table:
    entry = table.put("app/rate", "100")
    table.put("app/rate", "200", if_version=entry.version)
    try:
        table.put("app/rate", "300", if_version=entry.version)
    except stentor.ConditionFailed:
        print("somebody was faster:", table["app/rate"])
""",
    "Table.delete": """\
with client.table("config") as table:
    table.put("app/old", "1")
    table.delete("app/old")
    print("app/old" in table)
""",
    "Table.put_many": """\
with client.table("config") as table:
    table.put_many({"app/host": "10.0.0.7", "app/port": "8080", "app/old": None})
    print(table.entries("app/"))
""",
    "Table.touch": """\
with client.table("config") as table:
    table.put("workers/7", "busy", ttl=30)
    table.touch("workers/7")  # it stays for another 30 seconds
""",
    "Table.holds": """\
with client.table("config") as table:
    table.put("leader", "worker-7", ephemeral=True, grace=10)
    print(table.holds("leader") > 5)  # surely mine for more than five seconds
""",
    "Table.confirm": """\
with client.table("config") as table:
    table.put("leader", "worker-7", ephemeral=True, grace=10)
    print(table.confirm("leader") > 5)  # certain by this client's clock, or asked for
""",
    "Table.add": """\
with client.table("config") as table:
    print(table.add("visits"), table.add("visits", 10))
""",
    "Table.entry": """\
with client.table("config") as table:
    table.put("app/rate", "100")
    entry = table.entry("app/rate")
    print(entry.value, entry.version)
""",
    "Table.entries": """\
with client.table("config") as table:
    for entry in table.entries("app/"):
        print(entry.key, entry.value, entry.version)
""",
    "Table.get": """\
with client.table("config") as table:
    rate = int(table.get("app/rate", b"100"))
    print(rate)
""",
    "Table.keys": """\
with client.table("config") as table:
    print(sorted(table.keys()))
""",
    "Table.values": """\
with client.table("config") as table:
    print(sum(len(value) for value in table.values()), "bytes")
""",
    "Table.items": """\
with client.table("config") as table:
    for key, value in table.items():
        print(key, value)
""",
    "Table.to_arrow": """\
with client.table("config") as table:
    print(table.to_arrow().num_rows)
""",
    "Table.to_pandas": """\
with client.table("config") as table:
    print(table.to_pandas("app/").key)
""",
    "Table.wait": """\
with client.table("config") as table:
    table.put("app/rate", "100")
    sequence = table.sequence  # hand it to whoever must see this change
    table.wait(sequence, timeout=5)
""",
    "Table.sync": """\
with client.table("config") as table:
    table.sync()  # now it has everything that anybody has put before
    print(len(table))
""",
    "Table.on_change": """\
with client.table("config") as table:
    stop = table.on_change("app/", lambda change: print(change.key, change.new))
    table.put("app/rate", "300")
    stop()
""",
    "Table.get_many": """\
with client.table("config") as table:
    table.put_many({"app/host": "10.0.0.7", "app/port": "8080"})
    values, sequence = table.get_many(["app/host", "app/port"])
    print(values["app/host"], values["app/port"], sequence)
""",
    "Table.history": """\
with client.table("config") as table:
    versions = table.history("app/rate", limit=10)
    print([(each.timestamp, each.value) for each in versions])
""",
    "Table.on_resync": """\
with client.table("config") as table:
    table.on_resync(lambda news: print(news.table, news.changes, "keys differ"))
    print(table.state)
""",
    "TableWatch.get": """\
with client.table("config") as table, table.watch("app/") as watch:
    table.put("app/rate", "400")
    change = watch.get(timeout=5)
    print(change.key, change.new.value, watch.sequence)
""",
    "Table.watch": """\
with client.table("config") as table, table.watch("app/") as watch:
    table.put("app/rate", "300")
    for change in watch:
        print(change.key, change.old, change.new)
        break
""",
}
