"""Has Testcontainers' module for Kafka start an image, and a client use it. Arguments: image; kraft or zookeeper."""

import sys

from kafka import KafkaConsumer, KafkaProducer
from testcontainers.kafka import KafkaContainer

image, mode = sys.argv[1:]
container = KafkaContainer(image)
if mode == "kraft":
    container = container.with_kraft()
with container:
    bootstrap = container.get_bootstrap_server()
    producer = KafkaProducer(bootstrap_servers=bootstrap)
    print(producer.send("orders", b"a book").get(30).offset)
    consumer = KafkaConsumer(
        "orders", bootstrap_servers=bootstrap, auto_offset_reset="earliest", group_id="g", consumer_timeout_ms=30_000
    )
    print(next(consumer).value.decode())
    consumer.close()
    producer.close()
