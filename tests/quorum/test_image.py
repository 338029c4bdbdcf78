"""The image of a cluster: what records of the metadata log say together, and what they change."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from kbroker.quorum.image import MIGRATING, ImageError, MetadataDelta, MetadataImage, differences
from protocol.message import Message
from protocol.messages.metadata_records import (
    AbortTransactionRecord,
    AccessControlEntryRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ClientQuotaRecord,
    ConfigRecord,
    EndTransactionRecord,
    EntityData,
    FeatureLevelRecord,
    FenceBrokerRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveAccessControlEntryRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnregisterBrokerRecord,
    ZkMigrationStateRecord,
    decode_record,
)
from tests.quorum.histories import History, image_of

ORDERS, PAYMENTS = b"o" * 16, b"p" * 16
HERE, THERE = b"h" * 16, b"t" * 16


def level(number: int) -> FeatureLevelRecord:
    return FeatureLevelRecord(name="metadata.version", feature_level=number)


def topic(name: str = "orders", topic_id: bytes = ORDERS) -> TopicRecord:
    return TopicRecord(name=name, topic_id=topic_id)


def partition(index: int = 0, topic_id: bytes = ORDERS, **fields: Any) -> PartitionRecord:
    values = {"replicas": [1, 2], "isr": [1, 2], "leader": 1, "leader_epoch": 3, "partition_epoch": 7} | fields
    return PartitionRecord(partition_id=index, topic_id=topic_id, removing_replicas=[], adding_replicas=[], **values)


def change(index: int = 0, **fields: Any) -> PartitionChangeRecord:
    return PartitionChangeRecord(partition_id=index, topic_id=ORDERS, **fields)


def broker(broker_id: int = 1, epoch: int = 9, **fields: Any) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=broker_id, incarnation_id=HERE, broker_epoch=epoch, end_points=[], features=[], rack=None, **fields
    )


def config(value: str | None, name: str = "retention.ms", resource: str = "orders") -> ConfigRecord:
    return ConfigRecord(resource_type=2, resource_name=resource, name=name, value=value)


def quota(value: float, *, remove: bool = False, **entity: str | None) -> ClientQuotaRecord:
    named = [EntityData(entity_type=each.replace("_", "-"), entity_name=name) for each, name in entity.items()]
    return ClientQuotaRecord(entity=named, key="producer_byte_rate", value=value, remove=remove)


def tables(image: MetadataImage) -> dict[str, Any]:
    """All that an image says."""
    return {name: value for name, value in vars(image).items() if not name.startswith("_")}


def of_orders(image: MetadataImage, index: int = 0) -> PartitionRecord:
    found = image.partition(ORDERS, index)
    assert found is not None
    return found


def test_topics_are_found_by_name_and_by_id() -> None:
    image = image_of([topic(), partition(0), partition(1)])
    found = image.topic_named("orders")
    assert found is image.topics[ORDERS]
    assert list(found.partitions) == [0, 1]
    assert image.topic_named("payments") is None
    assert image.partition(PAYMENTS, 0) is None


def test_a_change_leaves_what_it_does_not_name() -> None:
    image = image_of([topic(), partition(), change(isr=[1])])
    found = of_orders(image)
    assert (found.isr, found.replicas, found.leader, found.leader_epoch, found.partition_epoch) == (
        [1],
        [1, 2],
        1,
        3,
        8,
    )


@pytest.mark.parametrize("leader", [-1, 1, 2])
def test_a_leader_that_is_named_begins_an_epoch_even_if_it_is_the_same(leader: int) -> None:
    found = of_orders(image_of([topic(), partition(), change(leader=leader)]))
    assert (found.leader, found.leader_epoch, found.partition_epoch) == (leader, 4, 8)


def test_replicas_without_directories_are_in_unknown_ones() -> None:
    assert of_orders(image_of([topic(), partition()])).directories == [MIGRATING] * 2
    grown = image_of([topic(), partition(), change(replicas=[1, 2, 3])])
    assert of_orders(grown).directories == [MIGRATING] * 3
    assigned = image_of([topic(), partition(), change(directories=[HERE, MIGRATING])])
    assert of_orders(assigned).directories == [HERE, MIGRATING]


def test_eligible_leader_replicas_come_and_go() -> None:
    image = image_of([topic(), partition(eligible_leader_replicas=[2], last_known_elr=[])])
    assert (of_orders(image).eligible_leader_replicas, of_orders(image).last_known_elr) == ([2], None)
    image.apply(change(last_known_elr=[2], eligible_leader_replicas=[]))
    assert (of_orders(image).eligible_leader_replicas, of_orders(image).last_known_elr) == (None, [2])
    image.apply(ClearElrRecord(topic_name=""))
    assert (of_orders(image).last_known_elr, of_orders(image).partition_epoch) == (None, 9)


def test_eligible_leader_replicas_are_forgotten_of_one_topic() -> None:
    records = [topic(), partition(eligible_leader_replicas=[2]), topic("payments", PAYMENTS)]
    image = image_of([*records, partition(topic_id=PAYMENTS, eligible_leader_replicas=[2])])
    image.apply(ClearElrRecord(topic_name="payments"))
    assert of_orders(image).eligible_leader_replicas == [2]
    assert list(image.take_delta().partitions) == [(PAYMENTS, 0)]


def test_a_delta_remembers_what_was_there_before_the_first_change() -> None:
    image = image_of([topic(), partition()])
    before = of_orders(image)
    image.apply(change(isr=[1]))
    image.apply(change(isr=[1, 2]))
    image.apply(partition(1))
    delta = image.take_delta()
    assert delta.partitions == {(ORDERS, 0): before, (ORDERS, 1): None}
    assert (before.isr, before.partition_epoch, of_orders(image).partition_epoch) == ([1, 2], 7, 9)
    assert not image.take_delta()


def test_a_deleted_topic_is_in_the_delta_with_all_its_partitions() -> None:
    image = image_of([topic(), partition(0), partition(1), config("7")])
    image.apply(RemoveTopicRecord(topic_id=ORDERS))
    delta = image.take_delta()
    gone = delta.topics[ORDERS]
    assert gone is not None
    assert gone.name == "orders"
    assert delta.partitions == {(ORDERS, 0): gone.partitions[0], (ORDERS, 1): gone.partitions[1]}
    assert delta.configs == {(2, "orders"): {"retention.ms": "7"}}
    assert tables(image) == tables(MetadataImage())


def test_a_topic_that_is_created_again_has_another_id() -> None:
    image = image_of([topic(), partition()])
    for record in (RemoveTopicRecord(topic_id=ORDERS), topic("orders", PAYMENTS), partition(topic_id=PAYMENTS)):
        image.apply(record)
    delta = image.take_delta()
    assert image.topic_ids == {"orders": PAYMENTS}
    assert {key: was is None for key, was in delta.topics.items()} == {ORDERS: False, PAYMENTS: True}


def test_a_broker_is_what_its_changes_have_left_of_it() -> None:
    image = image_of([broker(log_dirs=[HERE])])
    first = image.brokers[1]
    image.apply(BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=9, fenced=-1))
    image.apply(BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=9, in_controlled_shutdown=1, log_dirs=[THERE]))
    now = image.brokers[1]
    assert (now.fenced, now.in_controlled_shutdown, now.log_dirs) == (False, True, [THERE])
    assert image.take_delta().brokers == {1: first}
    assert first.fenced
    image.apply(UnregisterBrokerRecord(broker_id=1, broker_epoch=9))
    assert image.brokers == {}
    assert image.take_delta().brokers == {1: now}


def test_settings_and_quotas_are_kept_by_name_and_go_with_the_last() -> None:
    image = image_of([config("7"), config("1", "segment.ms"), quota(5.0, user="a", client_id=None)])
    assert image.configs == {(2, "orders"): {"retention.ms": "7", "segment.ms": "1"}}
    assert image.client_quotas == {(("client-id", None), ("user", "a")): {"producer_byte_rate": 5.0}}
    for record in (config(None), config(None, "segment.ms"), quota(0.0, remove=True, client_id=None, user="a")):
        image.apply(record)
    assert tables(image) == tables(MetadataImage())
    image.take_delta()
    image.apply(config(None))
    assert not image.take_delta()


def test_what_says_nothing_changes_nothing() -> None:
    kraft = FeatureLevelRecord(name="kraft.version", feature_level=1)
    image = MetadataImage()
    for record in (NoOpRecord(), ZkMigrationStateRecord(zk_migration_state=3), kraft):
        image.apply(record)
    assert not image.take_delta()
    assert tables(image) == tables(MetadataImage())


def test_a_feature_of_level_0_is_off() -> None:
    image = image_of([level(33), FeatureLevelRecord(name="share.version", feature_level=1)])
    assert (image.metadata_version, image.features["share.version"]) == (33, 1)
    image.apply(FeatureLevelRecord(name="share.version", feature_level=0))
    assert image.features == {"metadata.version": 33}
    assert image.take_delta().features == {"share.version": 1}


def test_records_of_a_transaction_count_together_at_its_end() -> None:
    image = MetadataImage()
    for record in (BeginTransactionRecord(), topic(), partition()):
        image.apply(record)
    assert (image.in_transaction, image.topics, bool(image.take_delta())) == (True, {}, False)
    image.apply(EndTransactionRecord())
    assert (image.in_transaction, list(image.topics), list(image.take_delta().partitions)) == (
        False,
        [ORDERS],
        [(ORDERS, 0)],
    )


def test_records_of_an_aborted_transaction_never_count() -> None:
    image = MetadataImage()
    for record in (BeginTransactionRecord(), topic(), AbortTransactionRecord(), topic("payments", PAYMENTS)):
        image.apply(record)
    assert (image.in_transaction, list(image.topic_ids)) == (False, ["payments"])


BEGUN = [topic(), partition(), broker(), level(21)]
RULE = AccessControlEntryRecord(
    id=HERE,
    resource_type=2,
    resource_name="*",
    pattern_type=3,
    principal="User:a",
    host="*",
    operation=2,
    permission_type=3,
)


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        (partition(topic_id=PAYMENTS), f"PartitionRecord for the topic with id {PAYMENTS.hex()}, which there is not"),
        (change(4), "PartitionChangeRecord for orders-4, which there is not"),
        (
            RemoveTopicRecord(topic_id=PAYMENTS),
            f"RemoveTopicRecord for the topic with id {PAYMENTS.hex()}, which there is not",
        ),
        (ClearElrRecord(topic_name="gone"), "ClearElrRecord for topic gone, which there is not"),
        (partition(1, directories=[HERE]), "orders-1 has 2 replicas, and directories of 1"),
        (FenceBrokerRecord(id=2, epoch=9), "a change of broker 2 of epoch 9, which is not registered"),
        (FenceBrokerRecord(id=1, epoch=8), "a change of broker 1 of epoch 8, whose epoch is 9"),
        (
            BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=9, fenced=3),
            "BrokerRegistrationChangeRecord for broker 1 with fenced=3, in_controlled_shutdown=0",
        ),
        (
            RemoveAccessControlEntryRecord(id=HERE),
            f"RemoveAccessControlEntryRecord for the rule with id {HERE.hex()}, which there is not",
        ),
        (
            level(34),
            "metadata.version 34 is too new, this broker knows 21 (3.9-IV0) to 33 (4.4-IV2)",
        ),
        (
            level(20),
            "metadata.version 20 is too old, this broker knows 21 (3.9-IV0) to 33 (4.4-IV2): raise it with "
            "kafka-features.sh first",
        ),
        (EndTransactionRecord(), "EndTransactionRecord outside of a transaction"),
        (AbortTransactionRecord(), "AbortTransactionRecord outside of a transaction"),
    ],
)
def test_a_record_that_does_not_fit_is_one_sentence(record: Message, sentence: str) -> None:
    image = image_of(BEGUN)
    with pytest.raises(ImageError) as caught:
        image.apply(record)
    assert str(caught.value) == sentence


def test_a_transaction_within_a_transaction_is_one_sentence() -> None:
    image = image_of([BeginTransactionRecord()])
    with pytest.raises(ImageError, match="BeginTransactionRecord within a transaction"):
        image.apply(BeginTransactionRecord())


@pytest.mark.parametrize("number", [21, 23, 33])
def test_a_snapshot_of_any_history_makes_the_same_image(number: int) -> None:
    for seed in range(20):
        history = History(seed, number)
        for _ in range(60):
            history.batch()
        values = [decode_record(each)[0] for each in history.encoded([record for record, _ in history.image.records()])]
        assert tables(image_of(values)) == tables(history.image), seed


def test_a_snapshot_leaves_out_what_the_level_has_no_place_for() -> None:
    image = image_of([level(21), topic(), partition(eligible_leader_replicas=[2]), broker(cordoned_log_dirs=[])])
    written = {type(record).__name__: (record, version) for record, version in image.records()}
    record, version = written["PartitionRecord"]
    assert (record.encode(version), version) == (partition(directories=[MIGRATING] * 2).encode(1), 1)
    record, version = written["RegisterBrokerRecord"]
    assert (record.encode(version), version) == (broker().encode(3), 3)
    assert of_orders(image).eligible_leader_replicas == [2]


def test_a_snapshot_begins_with_the_metadata_version() -> None:
    image = image_of([FeatureLevelRecord(name="group.version", feature_level=1), level(33)])
    assert image.records()[0] == (level(33), 0)


def test_what_differs_is_named_in_the_order_of_its_making() -> None:
    """So that topics come up in the same order after each start, whatever their ids are."""
    made = [(b"%016d" % (number * 7919 % 100), f"topic-{number}") for number in range(100)]
    image = image_of([each for topic_id, name in made for each in (topic(name, topic_id), partition(0, topic_id))])
    delta = differences(MetadataImage(), image)
    assert list(delta.topics) == [topic_id for topic_id, _ in made]
    assert [topic_id for topic_id, _ in delta.partitions] == [topic_id for topic_id, _ in made]


def applied(old: MetadataImage, delta: MetadataDelta, new: MetadataImage) -> None:
    """Put everything that a delta names from one image into another."""
    for name, changed in vars(delta).items():
        if name in ("topics", "partitions"):
            continue
        for key in changed:
            table, now = getattr(old, name), getattr(new, name)
            table.pop(key, None)
            if key in now:
                table[key] = now[key]
    for topic_id, index in delta.partitions:
        if topic_id in old.topics:
            old.topics[topic_id].partitions.pop(index, None)
    for topic_id in delta.topics:
        if topic_id in new.topics:
            old.topics[topic_id] = new.topics[topic_id]._replace(partitions={})
        else:
            old.topics.pop(topic_id, None)
    for topic_id, index in delta.partitions:
        partition = new.partition(topic_id, index)
        if partition is not None:
            old.topics[topic_id].partitions[index] = partition


def test_a_delta_names_all_that_has_changed() -> None:
    for seed in range(20):
        history = History(seed)
        for _ in range(20):
            history.batch()
        image = history.image
        before, _ = deepcopy(image), image.take_delta()
        for _ in range(12):
            history.step()
        delta = image.take_delta()
        compared = differences(before, image)
        for name, changed in vars(compared).items():
            assert changed.keys() <= vars(delta)[name].keys(), (seed, name)
        for made in (delta, compared):
            copy = deepcopy(before)
            applied(copy, made, image)
            copy.topic_ids, copy.next_producer_id = image.topic_ids, image.next_producer_id
            assert tables(copy) == tables(image), seed
