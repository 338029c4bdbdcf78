"""Every misuse of transactions, played to Apache Kafka and to us: the answers must be the same.

Of the first protocol Apache is 3.9.1; of the second (KIP-890) it is 4.4.0, which always speaks it.

A table of deeds, each tried in every state that a transactional id can be in, by its holder and by others, in old and
new versions of each request. What differs on purpose stands in docs/transactions.md, and is in no row.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from compat_tests.apache import NEWEST
from compat_tests.brokers import place_of
from compat_tests.raw import Connection, lower
from compat_tests.test_differences import NOT_COMPARED, Told, topic
from compat_tests.waiting import eventually
from protocol.errors import ErrorCode
from protocol.message import Message
from protocol.messages.groups import FindCoordinatorRequest
from protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    TopicRequest,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from protocol.records import Record
from protocol.records.content import build_batch

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
GROUP, COMMITTED = "g", 1
BUSY = {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}


class Who(NamedTuple):
    """Who a request says it is from."""

    name: str
    id: int
    epoch: int


# ---- requests


def init(name: str | None, timeout_ms: int = 60_000, producer: tuple[int, int] = (-1, -1)) -> InitProducerIdRequest:
    return InitProducerIdRequest(
        transactional_id=name,
        transaction_timeout_ms=timeout_ms,
        producer_id=producer[0],
        producer_epoch=producer[1],
    )


def add(who: Who, *partitions: int, to: str = "t") -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=who.name,
        v3_and_below_producer_id=who.id,
        v3_and_below_producer_epoch=who.epoch,
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=to, partitions=list(partitions))],
    )


def add_offsets(who: Who) -> AddOffsetsToTxnRequest:
    return AddOffsetsToTxnRequest(
        transactional_id=who.name, producer_id=who.id, producer_epoch=who.epoch, group_id=GROUP
    )


def end(who: Who, *, commit: bool) -> EndTxnRequest:
    return EndTxnRequest(transactional_id=who.name, producer_id=who.id, producer_epoch=who.epoch, committed=commit)


def offsets(who: Who, generation: int = -1, partition: int = 0) -> TxnOffsetCommitRequest:
    part = TxnOffsetCommitRequestPartition(partition_index=partition, committed_offset=1, committed_metadata="")
    return TxnOffsetCommitRequest(
        transactional_id=who.name,
        group_id=GROUP,
        producer_id=who.id,
        producer_epoch=who.epoch,
        generation_id=generation,
        topics=[TxnOffsetCommitRequestTopic(name="t", partitions=[part])],
    )


def write(who: Who, sequence: int, *, transactional: bool = True, partition: int = 0) -> ProduceRequest:
    batch = build_batch(
        [Record(0, 1000, None, b"v")],
        producer_id=who.id,
        producer_epoch=who.epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
    data = [PartitionProduceData(index=partition, records=bytes(batch))]
    return ProduceRequest(
        transactional_id=who.name,
        acks=-1,
        timeout_ms=5000,
        topic_data=[TopicProduceData(name="t", partition_data=data)],
    )


def marker(who: Who, coordinator_epoch: int, *, to: str = "t", partition: int = 0) -> WriteTxnMarkersRequest:
    each = WritableTxnMarker(
        producer_id=who.id,
        producer_epoch=who.epoch,
        transaction_result=True,
        topics=[WritableTxnMarkerTopic(name=to, partition_indexes=[partition])],
        coordinator_epoch=coordinator_epoch,
    )
    return WriteTxnMarkersRequest(markers=[each])


# ---- the table: what is tried in each state; and in which versions

DEEDS: list[tuple[str, tuple[int, ...], Callable[[Who], Message]]] = [
    ("adds a partition that there is not", (0, 2, 3), lambda who: add(who, 9)),
    ("adds one that there is, and one that there is not", (0, 3), lambda who: add(who, 0, 9)),
    ("adds a topic that there is not", (3,), lambda who: add(who, 0, to="nope")),
    ("commits an offset of a partition that there is not", (0, 3, 4), lambda who: offsets(who, partition=9)),
    ("commits an offset of a generation that there is not", (3, 4), lambda who: offsets(who, generation=7)),
    ("commits an offset", (0, 2, 3, 4), offsets),
    ("leaves out sequences", (9, 11), lambda who: write(who, 77)),
    ("writes where nothing was added", (7, 9, 11), lambda who: write(who, 0, partition=1)),
]
OF_STRANGERS: list[tuple[str, tuple[int, ...], Callable[[Who], Message]]] = [
    ("adds a partition", (0, 1, 2, 3), lambda who: add(who, 0)),
    ("adds offsets", (0, 1, 2, 3, 4), add_offsets),
    ("commits", (0, 1, 2, 3, 4), lambda who: end(who, commit=True)),
    ("aborts", (0, 1, 2, 3, 4), lambda who: end(who, commit=False)),
    ("commits an offset", (0, 2, 3, 4), offsets),
    ("writes", (7, 9, 11), lambda who: write(who, 0)),
    ("goes on", (3, 4, 5), lambda who: init(who.name, producer=(who.id, who.epoch))),
]
TIMEOUTS = (0, -1, 900_001, 2**31 - 1)


def ready(told: Told, request: Message, version: int) -> Message:
    """The answer once the coordinator is not busy with something else."""
    answer = told.ask_aside(request, version)
    while ErrorCode.of(_code(answer)) in BUSY:
        answer = told.ask_aside(request, version)
    return answer


def _code(answer: Message) -> int:
    if hasattr(answer, "results_by_topic_v3_and_below"):
        return int(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)
    return int(answer.error_code)  # type: ignore[attr-defined]


def hold(told: Told, name: str) -> Who:
    """Take a transactional id."""
    answer = ready(told, init(name), 4)
    assert _code(answer) == 0, answer
    return Who(name, answer.producer_id, answer.producer_epoch)  # type: ignore[attr-defined]


def at_rest(told: Told, who: Who) -> None:
    """Until the last transaction is complete, whatever became of it."""

    def is_complete() -> bool:
        answer = told.ask_aside(DescribeTransactionsRequest(transactional_ids=[who.name]), 0)
        return answer.transaction_states[0].transaction_state in ("CompleteCommit", "CompleteAbort", "Empty")

    eventually(is_complete)


def try_all(told: Told, who: Who) -> None:
    """Every deed of a holder."""
    for _, versions, deed in DEEDS:
        for version in versions:
            told.ask(deed(who), version)


def try_as_others(told: Told, who: Who, *, is_open: bool = False) -> None:
    """Every deed of one who is not the holder: another id, an epoch that was, one that is to come, no name."""
    others = [
        who._replace(id=who.id + 1_000_000),
        who._replace(epoch=who.epoch + 1),
        who._replace(name=f"not-{who.name}"),
    ]
    if who.epoch:
        others.append(who._replace(epoch=who.epoch - 1))
    for other in others:
        for what, versions, deed in OF_STRANGERS:
            # Kafka 3.9 looks at no epoch where the partition has a transaction open, and ends it for who goes on
            may_differ = what == "goes on" or (what == "writes" and is_open and other.epoch > who.epoch)
            for version in versions if not may_differ else ():
                told.ask(deed(other), version)


def begin(told: Told, who: Who) -> None:
    assert _code(ready(told, add(who, 0), 3)) == 0


# ---- stories


def ask_for_an_id(told: Told) -> None:
    """Ids with wrong time-outs, without a name, with half a producer."""
    hold(told, "first")
    for version in (0, 1, 3, 4, 5):
        for timeout_ms in TIMEOUTS:
            told.ask(init("x", timeout_ms), version)
        told.ask(init(""), version)
        told.ask(init(None, -1), version)
    for version in (3, 4, 5):
        told.ask(init("half", producer=(5, -1)), version)
        told.ask(init("half", producer=(-1, 5)), version)
        told.ask(init(None, producer=(5, -1)), version)
    for key, kind in (("", 1), ("x", 7), ("x", -1)):
        for version in (1, 2, 3):
            told.ask(FindCoordinatorRequest(key=key, key_type=kind), version)


def begin_nothing(told: Told) -> None:
    """A holder who has begun no transaction, and others who say that they are it."""
    who = hold(told, "empty")
    try_as_others(told, who)
    try_all(told, who)
    for commit in (True, False):
        for version in (0, 2, 4):
            told.ask(end(who, commit=commit), version)
    nameless = who._replace(name="")
    for request in (add(nameless, 0), add_offsets(nameless), end(nameless, commit=True)):
        told.ask(request, 3)


def go_wrong_within(told: Told) -> None:
    """A transaction is open."""
    who = hold(told, "open")
    begin(told, who)
    told.ask(write(who, 0), 9)
    told.ask(write(who, 0), 9)  # again
    told.ask(write(who, 5, transactional=False), 9)
    try_as_others(told, who, is_open=True)
    try_all(told, who)
    told.ask(add(who, 0), 3)
    told.ask(add_offsets(who), 3)
    told.ask(offsets(who), 3)
    told.ask(end(who, commit=True), 3)
    at_rest(told, who)
    for version in (0, 2, 4):
        told.ask(end(who, commit=True), version)
        told.ask(end(who, commit=False), version)
    try_as_others(told, who)
    try_all(told, who)
    told.ask(write(who, 1), 9)


def be_fenced(told: Told) -> None:
    """Another takes the id: between transactions, and in the middle of one."""
    for name, is_open in (("taken", False), ("robbed", True)):
        before = hold(told, name)
        if is_open:
            begin(told, before)
            told.ask(write(before, 0), 9)
        after = hold(told, name)
        for _, versions, deed in OF_STRANGERS:
            for version in versions:
                told.ask(deed(before), version)
        begin(told, after)
        told.ask(write(after, 0), 9)
        told.ask(write(before, 1), 11)
        told.ask(end(after, commit=False), 3)
        at_rest(told, after)


def go_on_after_an_error(told: Told) -> None:
    """KIP-360: a producer raises its own epoch, asks twice, and asks too late."""
    who = hold(told, "again")
    for epoch in (who.epoch, who.epoch, who.epoch + 1, who.epoch, who.epoch + 9):
        for version in (3, 4, 5):
            told.ask(init(who.name, producer=(who.id, epoch)), version)
    told.ask(init("never-seen", producer=(who.id, 0)), 4)


def write_markers(told: Told) -> None:
    """Markers of producers that are not, or will be; for partitions that are not."""
    who = hold(told, "marked")
    begin(told, who)
    told.ask(write(who, 0), 9)
    for version in (0, 1):
        for other in (who._replace(epoch=-1), who._replace(id=-1)):
            if version:
                continue
            told.ask(marker(other, 0, partition=9), version)
        told.ask(marker(who, 0, partition=9), version)
        told.ask(marker(who, 0, to="nope"), version)
    told.ask(marker(who, 0), 1)
    told.ask(marker(who, 0), 1)
    told.ask(marker(who._replace(epoch=who.epoch + 3), 0), 1)
    told.ask(marker(who, 0), 1)
    told.ask(write(who, 1), 9)


def look_around(told: Told) -> None:
    """Tools that ask for what there is not."""
    who = hold(told, "seen")
    begin(told, who)
    for names in ([], ["nobody"], [""], ["seen", "nobody"]):
        if "seen" not in names:
            told.ask(DescribeTransactionsRequest(transactional_ids=names), 0)
    for states in ([], ["Ongoing"], ["nonsense"], ["Dead", "Ongoing"]):
        for version in (0, 1):
            told.ask(ListTransactionsRequest(state_filters=states, producer_id_filters=[who.id + 77]), version)
            told.ask(ListTransactionsRequest(state_filters=[*states, "Empty"], producer_id_filters=[who.id]), version)
    for name, index in (("t", 9), ("nope", 0), ("a b", 0), ("", 0)):
        told.ask(DescribeProducersRequest(topics=[TopicRequest(name=name, partition_indexes=[index])]), 0)


# ---- the second protocol


def open_one(told: Told, name: str, timeout_ms: int = 60_000) -> Who:
    """A producer with a transaction that it has written in, without adding the partition before."""
    answer = ready(told, init(name, timeout_ms), 5)
    who = Who(name, answer.producer_id, answer.producer_epoch)  # type: ignore[attr-defined]
    eventually(lambda: told.ask_aside(write(who, 0), 12).responses[0].partition_responses[0].error_code == 0)
    return who


def time_out(told: Told, name: str) -> Who:
    """The same, whose transaction has been aborted for its timeout."""
    who = open_one(told, name, timeout_ms=1000)
    at_rest(told, who)
    return who


def abort_after_a_time_out(told: Told) -> None:
    """The producer aborts what was aborted, in its old epoch, and goes on."""
    who = time_out(told, "late")
    for commit in (False, False, True):
        told.ask(end(who, commit=commit), 5)
    for version in (3, 4):
        told.ask(end(who, commit=False), version)
    told.ask(write(who, 1), 12)
    told.ask(add(who, 0), 3)
    told.ask(end(who._replace(epoch=who.epoch - 1), commit=False), 5)
    after = who._replace(epoch=who.epoch + 1)
    told.ask(write(after, 0), 12)
    told.ask(end(who, commit=False), 5)
    told.ask(end(after, commit=True), 5)
    at_rest(told, who)
    told.ask(end(who, commit=False), 5)
    told.ask(end(after, commit=True), 5)


def ask_for_an_epoch_after_a_time_out(told: Told) -> None:
    """The producer asks for its next epoch in the old one; or another producer has the id by then."""
    for version in (3, 4, 5):
        who = time_out(told, f"asks-{version}")
        for epoch in (who.epoch, who.epoch, who.epoch + 1, who.epoch - 1):
            told.ask(init(who.name, producer=(who.id, max(epoch, 0))), version)
    who = time_out(told, "taken")
    told.ask(init(who.name), 5)
    told.ask(end(who, commit=False), 5)
    told.ask(init(who.name, producer=(who.id, who.epoch)), 5)


def ask_amid_a_transaction(told: Told) -> None:
    """InitProducerId aborts what is open: of the producer itself, of another one, who asks meanwhile."""
    who = open_one(told, "mine")
    again = init(who.name, producer=(who.id, who.epoch))
    told.ask(again, 5)
    at_rest(told, who)
    told.ask(again, 5)
    for name, waits in (("theirs", False), ("meanwhile", True)):
        who = open_one(told, name)
        told.ask(init(name), 5)
        at_rest(told, who)
        if waits:
            told.ask(end(who, commit=False), 5)
            told.ask(init(name, producer=(who.id, who.epoch)), 5)
        told.ask(init(name), 5)
        told.ask(end(who, commit=False), 5)
        told.ask(init(name, producer=(who.id, who.epoch)), 5)
        told.ask(write(who, 1), 12)


OF_SECOND_PROTOCOL = [abort_after_a_time_out, ask_for_an_epoch_after_a_time_out, ask_amid_a_transaction]
SECOND = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "300"}
STORIES = [
    ask_for_an_id,
    begin_nothing,
    go_wrong_within,
    be_fenced,
    go_on_after_an_error,
    write_markers,
    look_around,
]


@pytest.mark.parametrize(
    ("apache", "settings", "stories"),
    [("apache-3.9.1", {}, STORIES), (f"apache-{NEWEST}", SECOND, OF_SECOND_PROTOCOL)],
    ids=["first protocol", "second protocol"],
)
def test_both_brokers_answer_every_misuse_the_same(
    tmp_path: Path, apache: str, settings: dict[str, str], stories: list[Callable[[Told], None]]
) -> None:
    answers: dict[str, list[str]] = {}
    for choice in ("kbroker", apache):
        place = place_of(choice, tmp_path / choice, SETTINGS | settings)
        with place as server, Connection(server.port) as connection:
            if choice == "kbroker" and settings is not SECOND:
                lower(server.port, "transaction.version", 0)
            told = answers.setdefault(choice, [])
            topic(Told(connection), "t", partitions=2)
            for request in (
                FindCoordinatorRequest(key="first", key_type=COMMITTED),
                FindCoordinatorRequest(key=GROUP),
            ):
                eventually(lambda asked=request: Told(connection).ask_aside(asked, 3).error_code == 0)
            eventually(
                lambda: (
                    Told(connection).ask_aside(offsets(Who("x", 5, 0)), 3).topics[0].partitions[0].error_code
                    not in (14, 15, 16)
                )
            )
            for story in stories:
                one = Told(connection, NOT_COMPARED | {"port"})
                story(one)
                told += [f"{story.__name__}: {each}" for each in one.answers]
    differences = [(ours, apaches) for ours, apaches in zip(*answers.values(), strict=True) if ours != apaches]
    assert not differences, "\n".join(
        f"{len(differences)}: ours {ours}\n   Apache's {theirs}" for ours, theirs in differences
    )
