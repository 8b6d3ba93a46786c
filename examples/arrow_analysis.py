"""Arrow in, Arrow out: publish a table, read the topic back as one, and compute on it without a loop."""

import pyarrow as pa
import pyarrow.compute as pc

import stentor

READINGS = pa.table(
    {
        "key": [f"sensor-{number % 3}" for number in range(3_000)],
        "value": [str(number % 100) for number in range(3_000)],
    }
)

with stentor.connect() as client:
    client.create_topic("examples.readings", partitions=3, exist_ok=True)
    start = sum(client.offsets("examples.readings").values())

    with client.producer("examples.readings", compression="zstd") as producer:
        producer.send_batch(READINGS)  # rows of one key go to one partition, in order

    table = client.read("examples.readings").to_arrow()  # topic, partition, offset, timestamp, key, value, headers
    print(f"{table.num_rows - start} rows came back, as {', '.join(table.column_names)}")

    readings = pa.table(
        {
            "sensor": table["key"].cast(pa.string()),
            "reading": pc.cast(table["value"].cast(pa.string()), pa.int64()),
        }
    )
    for row in readings.group_by("sensor").aggregate([("reading", "mean")]).sort_by("sensor").to_pylist():
        print(f"{row['sensor']}: mean {row['reading_mean']:.1f}")
