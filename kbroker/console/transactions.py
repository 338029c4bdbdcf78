"""Transactions and producers: which are open, which hang, and how one is ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any

from kbroker.console.cluster import TRANSACTION, Cluster, ConsoleError, Place, by_topic, check, said_of
from kbroker.console.offsets import LATEST, offsets_at
from protocol.messages.transactions import (
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    InitProducerIdRequest,
    ListTransactionsRequest,
    TopicRequest,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)

MOST_SHOWN = 500
MOST_PARTITIONS = 5000  # whose producers are looked at
HANGS_MS = 15 * 60 * 1000  # transaction.max.timeout.ms: longer than that no coordinator lets one be open
OPEN = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")


def transactions(cluster: Cluster, search: str = "", all_states: bool = False) -> dict[str, Any]:
    """Transactional ids, the open ones first; and producers with a transaction in a partition that no coordinator knows
    of any more: it hangs. search: a part of the id. all_states: those too whose last transaction has ended."""
    listed = {}
    for node, answer in cluster.ask_all(ListTransactionsRequest(state_filters=[], producer_id_filters=[])).items():
        for each in answer.transaction_states if not answer.error_code else ():
            if search.casefold() in each.transactional_id.casefold():
                listed[each.transactional_id] = node, each
    chosen = [name for name, (_, each) in sorted(listed.items()) if all_states or each.transaction_state in OPEN]
    rows = list(_described(cluster, chosen[:MOST_SHOWN], {name: node for name, (node, _) in listed.items()}))
    rows.sort(key=lambda each: (each["state"] not in OPEN, each["id"]))
    return {"transactions": rows, "count": len(listed), "hanging": hanging(cluster, search) if not all_states else []}


def _described(cluster: Cluster, names: list[str], nodes: dict[str, int]) -> Iterable[dict[str, Any]]:
    now_ms = int(time.time() * 1000)
    of_node: dict[int, list[str]] = {}
    for name in names:
        of_node.setdefault(nodes[name], []).append(name)
    for node, mine in of_node.items():
        for each in cluster.ask(DescribeTransactionsRequest(transactional_ids=mine), node).transaction_states:
            if each.error_code:
                continue
            yield {
                "id": each.transactional_id,
                "state": each.transaction_state,
                "producer_id": each.producer_id,
                "producer_epoch": each.producer_epoch,
                "timeout_ms": each.transaction_timeout_ms,
                "open_ms": now_ms - each.transaction_start_time_ms if each.transaction_start_time_ms >= 0 else None,
                "coordinator": node,
                "partitions": [f"{topic.topic}-{at}" for topic in each.topics for at in topic.partitions],
            }


def producers(cluster: Cluster, topic: str) -> dict[str, Any]:
    """Producers that a topic's leaders remember, with their sequences; and where a transaction is open."""
    found = cluster.topic(topic)
    now_ms = int(time.time() * 1000)
    rows = [
        {
            "partition": place[1],
            "producer_id": each.producer_id,
            "producer_epoch": each.producer_epoch,
            "last_sequence": each.last_sequence,
            "last_ms_ago": now_ms - each.last_timestamp if each.last_timestamp >= 0 else None,
            "coordinator_epoch": each.coordinator_epoch,
            "start_offset": each.current_txn_start_offset if each.current_txn_start_offset >= 0 else None,
        }
        for place, each in _producers(cluster, [(topic, part.number) for part in found.partitions])
    ]
    return {"topic": topic, "producers": rows}


def _producers(cluster: Cluster, places: list[Place]) -> Iterable[tuple[Place, Any]]:
    for leader, mine in cluster.leaders(places).items():
        topics = [TopicRequest(name=name, partition_indexes=numbers) for name, numbers in by_topic(mine).items()]
        try:
            answer = cluster.ask(DescribeProducersRequest(topics=topics), leader)
        except ConsoleError:
            continue
        for topic in answer.topics:
            for part in topic.partitions:
                for each in part.active_producers:
                    yield (topic.name, part.partition_index), each


def hanging(cluster: Cluster, search: str = "") -> list[dict[str, Any]]:
    """Open transactions in partitions of which their coordinator knows nothing.

    Only partitions are looked at whose last stable offset is before their end.
    """
    every = cluster.described().topics
    places = [
        (name, each.number) for name, topic in every.items() if search in ("", name) or search in name
        for each in topic.partitions
    ][:MOST_PARTITIONS]  # fmt: skip
    stable = offsets_at(cluster, dict.fromkeys(places, LATEST), committed_only=True)
    stops = offsets_at(cluster, dict.fromkeys(places, LATEST))
    suspects = [place for place in places if stable.get(place, 0) < stops.get(place, 0)]
    found = [(place, each) for place, each in _producers(cluster, suspects) if each.current_txn_start_offset >= 0]
    known = _known(cluster, {each.producer_id for _, each in found}) if found else {}
    now_ms = int(time.time() * 1000)
    return [
        {
            "topic": place[0],
            "partition": place[1],
            "producer_id": each.producer_id,
            "producer_epoch": each.producer_epoch,
            "coordinator_epoch": each.coordinator_epoch,
            "start_offset": each.current_txn_start_offset,
            "blocked_records": stops[place] - each.current_txn_start_offset,
            "last_ms_ago": now_ms - each.last_timestamp,
        }
        for place, each in found
        if place not in known.get(each.producer_id, ())
    ]


def _known(cluster: Cluster, producer_ids: set[int]) -> dict[int, set[Place]]:
    """The partitions that coordinators know each producer's transaction to be in."""
    found: dict[int, set[Place]] = {}
    for node, answer in cluster.ask_all(ListTransactionsRequest(state_filters=[], producer_id_filters=[])).items():
        names = [each.transactional_id for each in answer.transaction_states if each.producer_id in producer_ids]
        if names:
            request = DescribeTransactionsRequest(transactional_ids=names)
            for each in cluster.ask(request, node).transaction_states:
                places = {(topic.topic, at) for topic in each.topics for at in topic.partitions}
                found.setdefault(each.producer_id, set()).update(places)
    return found


def abort_transaction(cluster: Cluster, id: str) -> dict[str, Any]:  # noqa: A002  # what people and scripts call it
    """End a transaction that a coordinator has open: its producer is fenced, what it has written is aborted."""
    node = cluster.coordinator(id, TRANSACTION)
    request = InitProducerIdRequest(transactional_id=id, transaction_timeout_ms=60_000)
    deadline_s, pause = time.monotonic() + 10, threading.Event()
    while True:
        code = cluster.ask(request, node, 5).error_code
        if code != 51 or time.monotonic() > deadline_s:  # CONCURRENT_TRANSACTIONS: the abort goes on
            break
        pause.wait(0.1)
    check(code)
    return {"id": id, "aborted": True}


def abort_hanging(cluster: Cluster, topic: str, partition: int, producer_id: int, start_offset: int) -> dict[str, Any]:
    """End a transaction that hangs in one partition: its leader writes the marker that no coordinator will."""
    place = (topic, partition)
    for each in hanging(cluster, topic):
        if (each["topic"], each["partition"], each["producer_id"]) == (*place, producer_id) and (
            each["start_offset"] == start_offset
        ):
            break
    else:
        raise ConsoleError(
            f"no transaction of producer {producer_id} hangs in {topic}-{partition} from {start_offset} on"
        )
    marker = WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=each["producer_epoch"],
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])],
        coordinator_epoch=max(each["coordinator_epoch"], 0),
    )
    (leader,) = cluster.leaders([place])
    (answer,) = cluster.ask(WriteTxnMarkersRequest(markers=[marker]), leader).markers
    code = answer.topics[0].partitions[0].error_code
    if code:
        raise ConsoleError(said_of(code))
    return {"topic": topic, "partition": partition, "producer_id": producer_id, "aborted": True}
