"""Spark reading with kafka.isolation.level=read_committed, while transactions are written and the broker is killed.

A stream goes on from its checkpoint again and again, in the middle of transactions, aborted ones and kills among them.
In the end it has had what was committed, once each, and nothing else.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from compat_tests.brokers import KbrokerProcess
from compat_tests.clients import REFERENCE, ClientError, running
from compat_tests.test_group_transactions_killed import SETTINGS
from compat_tests.test_spark import SPARK
from compat_tests.test_transactions_killed import AT_ONCE, TOPIC, Counter, committed
from compat_tests.test_transactions_killed import SOURCE as NUMBERS

SECTION, COLUMN = "9 Transactions", str(SPARK)
pytestmark = [pytest.mark.java, pytest.mark.timeout(1800)]
OPTIONS = {"subscribe": TOPIC, "startingOffsets": "earliest", "kafka.isolation.level": "read_committed"}


def test_stream_reads_what_is_committed_once_while_the_broker_is_killed(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Stream with isolation level read_committed while the broker is killed"""
    random = Random(4)
    with (
        KbrokerProcess(tmp_path / "broker", settings=SETTINGS) as broker,
        running(broker.address, tmp_path, SPARK, REFERENCE) as (spark, reference),
    ):
        for topic in (TOPIC, NUMBERS):
            reference.create_topic(topic)
        assert (
            spark.start("read", 300.0, options=OPTIONS)() == []
        )  # its session is there, and the first stream finds it awake
        counter = Counter(reference)
        for _ in range(request.config.getoption("--kills")):
            streaming = spark.start("stream_to_parquet", options=OPTIONS, folder=str(tmp_path / "stream"))
            for turn in range(random.randint(1, 8)):
                counter.count(committed(reference), commit=turn % 3 != 2)
            counter.leave_open(committed(reference))
            broker.kill()
            broker.start()
            counter.replace()
            counter.count(committed(reference), commit=True)
            try:
                streaming()
            except ClientError as gave_up:
                print("the stream gave up; the next one goes on:", gave_up)
        counted = committed(reference)
        seen = spark.ask("stream_to_parquet", options=OPTIONS, folder=str(tmp_path / "stream"))
    assert counted >= AT_ONCE * request.config.getoption("--kills")
    assert sorted(seen, key=int) == [str(number) for number in range(counted)]
