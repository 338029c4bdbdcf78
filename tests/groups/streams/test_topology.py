"""What a topology needs, and what is wrong with it, by the topics that are there."""

from __future__ import annotations

import pytest

from kbroker.groups.streams.topology import InternalTopic, Status, configure
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.stored_streams_groups import (
    CopartitionGroup,
    StreamsGroupTopologyValue,
    Subtopology,
    TopicConfig,
    TopicInfo,
)


class Topics(dict[str, int]):
    """Partitions by topic, as `configure` asks for them."""

    def __call__(self, name: str) -> int | None:
        return self.get(name)


def topic(name: str, partitions: int = 0, **configs: str) -> TopicInfo:
    settings = [TopicConfig(key=key.replace("_", "."), value=value) for key, value in configs.items()]
    return TopicInfo(name=name, partitions=partitions, replication_factor=0, topic_configs=settings)


def part(
    name: str,
    reads: tuple[str, ...] = (),
    repartitions: tuple[TopicInfo, ...] = (),
    writes: tuple[str, ...] = (),
    keeps: tuple[TopicInfo, ...] = (),
    together: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = (),
) -> Subtopology:
    return Subtopology(
        subtopology_id=name,
        source_topics=list(reads),
        source_topic_regex=[],
        state_changelog_topics=list(keeps),
        repartition_sink_topics=list(writes),
        repartition_source_topics=list(repartitions),
        copartition_groups=[
            CopartitionGroup(source_topics=list(own), source_topic_regex=[], repartition_source_topics=list(internal))
            for own, internal in together
        ],
    )


def topology(*parts: Subtopology) -> StreamsGroupTopologyValue:
    return StreamsGroupTopologyValue(epoch=0, subtopologies=list(parts))


WORD_COUNT = topology(
    part("0", reads=("lines",), writes=("words",)),
    part("1", repartitions=(topic("words", retention_ms="-1"),), keeps=(topic("counts", cleanup_policy="compact"),)),
)


def test_internal_topics_follow_from_what_is_read() -> None:
    found = configure(WORD_COUNT, Topics({"lines": 3}))
    assert found.missing == {
        "words": InternalTopic("words", 3, -1, {"retention.ms": "-1"}),
        "counts": InternalTopic("counts", 3, -1, {"cleanup.policy": "compact"}),
    }
    assert found.problem == (Status.MISSING_INTERNAL_TOPICS, "Internal topics are missing: counts, words")


def test_a_topology_with_all_its_topics_is_ready() -> None:
    found = configure(WORD_COUNT, Topics({"lines": 3, "words": 3, "counts": 3}))
    assert found.is_ready
    assert found.tasks == {"0": 3, "1": 3}


def test_missing_source_topics_are_named_three_at_most() -> None:
    found = configure(topology(part("0", reads=("a", "b", "c", "d", "e"))), Topics({"c": 1}))
    detail = "Source topics a, b, d and 1 additional topics are missing."
    assert found.problem == (Status.MISSING_SOURCE_TOPICS, detail)


def test_an_internal_topic_of_another_size_is_told() -> None:
    found = configure(WORD_COUNT, Topics({"lines": 3, "words": 3, "counts": 2}))
    detail = "Existing topic counts has different number of partitions: expected 3, found 2"
    assert found.problem == (Status.INCORRECTLY_PARTITIONED_TOPICS, detail)


def test_a_chain_of_repartition_topics_is_followed_whatever_its_order() -> None:
    chain = topology(
        part("a", repartitions=(topic("second"),), writes=("third",)),
        part("b", repartitions=(topic("first"),), writes=("second",)),
        part("c", reads=("input",), writes=("first",)),
        part("d", repartitions=(topic("third"),)),
    )
    assert configure(chain, Topics({"input": 7})).partitions == {"first": 7, "second": 7, "third": 7}


def test_a_repartition_topic_of_a_given_size_keeps_it() -> None:
    fixed = topology(part("0", reads=("input",), writes=("r",)), part("1", repartitions=(topic("r", 5),)))
    assert configure(fixed, Topics({"input": 2})).missing["r"].partitions == 5


def test_a_topology_that_only_reads_itself_is_refused() -> None:
    loop = topology(part("0", repartitions=(topic("r"),), writes=("r",)))
    with pytest.raises(KafkaError, match="There may be loops in the topology that cannot be resolved") as raised:
        configure(loop, Topics({}))
    assert raised.value.code is ErrorCode.STREAMS_INVALID_TOPOLOGY


def test_a_repartition_topic_that_is_never_written_is_refused() -> None:
    with pytest.raises(KafkaError, match="never used as a sink topic"):
        configure(topology(part("0", reads=("input",), repartitions=(topic("r"),))), Topics({"input": 1}))


def test_ten_thousand_subtopologies_in_a_loop_take_no_longer_than_their_length() -> None:
    count = 10_000
    parts = [part(str(at), repartitions=(topic(f"r{at}"),), writes=(f"r{(at + 1) % count}",)) for at in range(count)]
    with pytest.raises(KafkaError, match="loops"):
        configure(topology(*parts), Topics({}))


def test_topics_that_are_joined_must_be_of_one_size() -> None:
    join = topology(part("0", reads=("left", "right"), together=(((0, 1), ()),)))
    found = configure(join, Topics({"left": 1, "right": 2}))
    detail = "Following topics do not have the same number of partitions: [{left=1, right=2}]"
    assert found.problem == (Status.INCORRECTLY_PARTITIONED_TOPICS, detail)


def test_a_repartition_topic_takes_the_size_of_what_it_is_joined_with() -> None:
    join = topology(
        part("0", reads=("small",), writes=("r",)),
        part("1", reads=("large",), repartitions=(topic("r"),), together=(((0,), (0,)),)),
    )
    assert configure(join, Topics({"small": 1, "large": 6})).missing["r"].partitions == 6


def test_a_repartition_topic_of_a_given_size_does_not_fit_another() -> None:
    join = topology(
        part("0", reads=("small",), writes=("r",)),
        part("1", reads=("large",), repartitions=(topic("r", 2),), together=(((0,), (0,)),)),
    )
    problem = configure(join, Topics({"small": 1, "large": 6})).problem
    assert problem is not None
    assert problem[0] is Status.INCORRECTLY_PARTITIONED_TOPICS


def test_repartition_topics_that_are_joined_take_the_largest_size() -> None:
    join = topology(
        part("0", reads=("small",), writes=("r",)),
        part("1", reads=("large",), writes=("s",)),
        part("2", repartitions=(topic("r"), topic("s")), together=(((), (0, 1)),)),
    )
    missing = configure(join, Topics({"small": 1, "large": 6})).missing
    assert [missing[name].partitions for name in ("r", "s")] == [6, 6]


@pytest.mark.parametrize("index", [-1, 1])
def test_a_copartition_group_of_a_topic_that_is_not_there_is_refused(index: int) -> None:
    with pytest.raises(KafkaError, match=f"names topic {index} of 1"):
        configure(topology(part("0", reads=("input",), together=(((index,), ()),))), Topics({"input": 1}))


def test_a_table_made_of_its_source_topic_needs_no_changelog() -> None:
    table = topology(part("0", reads=("input",), keeps=(topic("input"),)))
    assert configure(table, Topics({"input": 4})).is_ready
