"""A simulated operator with a command line: deletes topics and makes them again, grows them, cuts records off, tunes.

What it asks for is told to the checks before it is sent, since it may happen even if no answer comes. What it was told
to be done must show: in Metadata, in DescribeConfigs, in where a log begins.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

from kbroker.sim.admins import METADATA, NOT_YET, creatable
from kbroker.sim.client import Lost, Script
from kbroker.sim.leaders import Router
from protocol.errors import ErrorCode
from protocol.messages.configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from protocol.messages.offsets import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from protocol.messages.topics import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)

if TYPE_CHECKING:
    from kbroker.sim.topics import Topic

DELETE_TOPICS = 20
BY_ID_SINCE = 6
TOPIC = 2
MOST_PARTITIONS = 6
STRAGGLER_MS = 20_000
"""By then a request whose answer was lost has arrived, or never will."""

Step = Generator[Any, Any, None]


class TopicAdmin(Router):
    """Looks after some topics. restless: whether it thinks of something new; else it only ends what it began."""

    topics: Sequence[Topic] = ()
    restless = True
    pace_ms = 10_000

    def live(self) -> Script:
        """One thing after the other."""
        self.fixed_versions[METADATA] = 12  # tells ids
        yield from self.shake_hands()
        yield from self.know(self.topics)
        self._settings = {topic.name: dict(topic.configs) for topic in self.topics}
        while True:
            yield from self.pause(self.pace_ms)
            topic = self.rng.choice(self.topics)
            deleted = [each for each in self.topics if self.checks.catalogue.is_unsettled(each.name)]
            if deleted:
                topic = deleted[0]
            try:
                if deleted:
                    yield from self._make_again(topic)
                elif self.restless:
                    yield from self.rng.choice(self._things(topic))(topic)
            except Lost as lost:
                self.misled_by_controller()
                self.note(f"lost an answer: {lost.why}")
                yield from self._outwait()

    def _outwait(self) -> Script:
        """Wait until what was sent cannot arrive any more."""
        until_ms = self.world.now_ms + STRAGGLER_MS
        while self.world.now_ms < until_ms:
            yield from self.pause(2_000)

    def _things(self, topic: Topic) -> list[Callable[[Topic], Step]]:
        things: list[Callable[[Topic], Step]] = [self._tune] if topic.is_compacted else [self._cut_off, self._tune]
        if self.checks.catalogue.count(topic) < MOST_PARTITIONS:
            things.append(self._grow)
        return [*things, self._delete, self._delete] if topic.mortal else things

    def _done(self, what: str, code: int, *others: ErrorCode) -> bool:
        """Note how it went. others: what may well be said to that."""
        error = ErrorCode.of(code)
        self.note(f"{what}: {error.name}")
        if error is ErrorCode.NOT_CONTROLLER:
            self.misled_by_controller()
        if error is not ErrorCode.NONE and error not in NOT_YET and error not in others:
            raise self.world.broken(f"{self} {what}: {error.name}")
        return error is ErrorCode.NONE

    # ---- topics

    def _delete(self, topic: Topic) -> Step:
        self.checks.catalogue.deletion_requested(topic.name)
        by_id = self.versions[DELETE_TOPICS] >= BY_ID_SINCE
        yield from self._ask_for_deletion(topic, by_id=by_id and self.rng.random() < 0.5)
        yield from self._make_again(topic)

    def _ask_for_deletion(self, topic: Topic, *, by_id: bool) -> Step:
        request = DeleteTopicsRequest(timeout_ms=self.rng.choice((1, 10_000)))
        if by_id:
            topic_id = self.checks.catalogue.topic_id(topic.name)
            request.topics = [DeleteTopicState(name=None, topic_id=topic_id)]
        elif self.versions[DELETE_TOPICS] >= BY_ID_SINCE:
            request.topics = [DeleteTopicState(name=topic.name, topic_id=bytes(16))]
        else:
            request.topic_names = [topic.name]
        answer = yield from self.ask(request, to=(yield from self.controller()))
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID
        self._done(f"deletes {topic.name}", answer.responses[0].error_code, *unknown)

    def _make_again(self, topic: Topic) -> Step:
        """See a deleted topic go, and make another of its name; or find that it is still there, and ask again."""
        old = self.checks.catalogue.topic_id(topic.name)
        found = yield from self._describe(topic)
        if found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            yield from self.pause(self.rng.choice((0, 0, 3_000)))
            if (yield from self._create(topic)):
                found = yield from self._describe(topic)
        if found.error_code == ErrorCode.NONE and found.topic_id != old:
            self.checks.catalogue.knows(topic.name, found.topic_id, len(found.partitions))
            self._settings[topic.name] = dict(topic.configs)
            self.note(f"knows the new {topic.name}")
        elif found.error_code == ErrorCode.NONE and self.rng.random() < 0.3:
            yield from self._ask_for_deletion(topic, by_id=self.versions[DELETE_TOPICS] >= BY_ID_SINCE)

    def _create(self, topic: Topic) -> Generator[Any, Any, bool]:
        request = CreateTopicsRequest(topics=[creatable(topic)], timeout_ms=10_000)
        answer = yield from self.ask(request, to=(yield from self.controller()))
        code = answer.topics[0].error_code
        return self._done(f"makes {topic.name} again", code, ErrorCode.TOPIC_ALREADY_EXISTS)

    def _describe(self, topic: Topic) -> Generator[Any, Any, Any]:
        """What Metadata says of a topic."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic.name)], allow_auto_topic_creation=False)
        answer = yield from self.ask(request, to=(yield from self.controller()))
        return answer.topics[0]

    def _grow(self, topic: Topic) -> Step:
        catalogue, before = self.checks.catalogue, self.checks.moment
        count = catalogue.count(topic) + 1
        only_look = self.rng.random() < 0.2
        wanted = CreatePartitionsTopic(name=topic.name, count=count, assignments=None)
        request = CreatePartitionsRequest(topics=[wanted], timeout_ms=10_000, validate_only=only_look)
        answer = yield from self.ask(request, to=(yield from self.controller()))
        shown = self._done(f"grows {topic.name} to {count}", answer.results[0].error_code, ErrorCode.INVALID_PARTITIONS)
        found = yield from self._describe(topic)
        if found.error_code != ErrorCode.NONE or not self.checks.is_same_topic(before, topic.name):
            return
        if shown and not only_look and len(found.partitions) != count:
            raise self.world.broken(f"{self} was told that {topic.name} has {count} partitions: {found}")
        catalogue.knows(topic.name, found.topic_id, len(found.partitions))

    # ---- records

    def _cut_off(self, topic: Topic) -> Step:
        index = self.rng.randrange(self.checks.catalogue.count(topic))
        where = (topic.name, index)
        held = self.checks.held(where)
        if held is None:
            return
        before = self.rng.randint(held.start, held.high_watermark)
        if topic.forgets and self.rng.random() < 0.3:
            before = -1
        else:
            self.checks.may_forget(where, before)
        asked = DeleteRecordsTopic(
            name=topic.name, partitions=[DeleteRecordsPartition(partition_index=index, offset=before)]
        )
        led, _ = yield from self.by_leader([where], lambda where: where)
        if not led:
            return
        moment = self.checks.moment
        answer = yield from self.ask(DeleteRecordsRequest(topics=[asked], timeout_ms=10_000), to=next(iter(led)))
        result = answer.topics[0].partitions[0]
        what = f"cuts {topic.name}-{index} off at {before}"
        if result.error_code != ErrorCode.NONE:
            self.misled(where)
        if self._done(what, result.error_code, ErrorCode.OFFSET_OUT_OF_RANGE) and result.low_watermark < before:
            raise self.world.broken(f"{self} {what}, and is told that it begins at {result.low_watermark}")
        if result.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and self.checks.is_same_topic(moment, topic.name):
            raise self.world.broken(f"{self} {what}: OFFSET_OUT_OF_RANGE")

    # ---- settings

    def _tune(self, topic: Topic) -> Step:
        key, values = self.rng.choice(topic.tunable)
        value = self.rng.choice(values)
        moment = self.checks.moment
        settings = {**self._settings[topic.name], key: value}
        whole = self.rng.random() < 0.3
        broker = yield from self.controller()  # any would do, if it is the same that is asked below
        answer = yield from self.ask(_whole(topic.name, settings) if whole else _one(topic.name, key, value), to=broker)
        gone = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if not self._done(f"sets {key}={value} of {topic.name}", answer.responses[0].error_code, gone):
            yield from self._outwait()
            return
        self._settings[topic.name] = settings
        wanted = DescribeConfigsResource(resource_type=TOPIC, resource_name=topic.name, configuration_keys=[key])
        described = (yield from self.ask(DescribeConfigsRequest(resources=[wanted]), to=broker)).results[0]
        if described.error_code != ErrorCode.NONE or not self.checks.is_same_topic(moment, topic.name):
            return
        if described.configs[0].value != value:
            raise self.world.broken(f"{self} has set {key}={value}, and is told {described.configs[0].value}")


def _whole(topic: str, settings: dict[str, str]) -> AlterConfigsRequest:
    configs = [AlterableConfig(name=key, value=value) for key, value in settings.items()]
    resource = AlterConfigsResource(resource_type=TOPIC, resource_name=topic, configs=configs)
    return AlterConfigsRequest(resources=[resource], validate_only=False)


def _one(topic: str, key: str, value: str) -> IncrementalAlterConfigsRequest:
    configs = [IncrementalAlterableConfig(name=key, config_operation=0, value=value)]
    resource = IncrementalAlterConfigsResource(resource_type=TOPIC, resource_name=topic, configs=configs)
    return IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
