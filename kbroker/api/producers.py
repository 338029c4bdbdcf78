"""DescribeProducers: what a partition's leader remembers of its producers, for the tool that looks for hanging ones.

Served: DescribeProducers 0 (KIP-664).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.api.authorization import for_each, topic_name
from kbroker.api.routes import Route
from kbroker.broker.authorizer import Operation, ResourceType
from kbroker.config.limits import ELEMENTS_PER_REQUEST
from kbroker.log.names import topic_name_fault
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

if TYPE_CHECKING:
    from kbroker.api.call import Call, InSlices
    from kbroker.log.producer_state import ProducerEntry


def describe_producers(request: DescribeProducersRequest, call: Call) -> InSlices:
    """The producers of each partition asked about; once, however often it is named."""
    topics = []
    for topic in request.topics:
        partitions = []
        for index in dict.fromkeys(topic.partition_indexes):
            partitions.append(_partition(topic.name, index, call))
            yield
        topics.append(TopicResponse(name=topic.name, partitions=partitions))
    return DescribeProducersResponse(topics=topics)


def _partition(topic: str, index: int, call: Call) -> PartitionResponse:
    try:
        fault = topic_name_fault(topic)
        if fault is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, fault)
        log = call.broker.replicas.find(topic, index).led()
    except KafkaError as error:
        return PartitionResponse(
            partition_index=index, error_code=error.code, error_message=error.message, active_producers=[]
        )
    producers = [_producer(producer_id, entry) for producer_id, entry in log.producers.items()]
    return PartitionResponse(partition_index=index, error_code=ErrorCode.NONE, active_producers=producers)


def _producer(producer_id: int, entry: ProducerEntry) -> ProducerState:
    return ProducerState(
        producer_id=producer_id,
        producer_epoch=entry.epoch,
        last_sequence=entry.batches[-1].last_sequence if entry.batches else -1,
        last_timestamp=entry.last_timestamp,
        coordinator_epoch=entry.coordinator_epoch,
        current_txn_start_offset=entry.txn_first_offset,
    )


def _refuse(request: DescribeProducersRequest, code: ErrorCode, text: str, version: int) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name,
                partitions=[
                    PartitionResponse(partition_index=index, error_code=code, error_message=text, active_producers=[])
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics
        ],
    )


NEEDS = (for_each(Operation.READ, ResourceType.TOPIC, "topics", "topics", topic_name),)
ROUTES = (Route(61, DescribeProducersRequest, 0, 0, describe_producers, _refuse, NEEDS, elements=ELEMENTS_PER_REQUEST),)
