"""Which offsets a job reads next, and of which topics: decided from values, without Spark and without a broker."""

from __future__ import annotations

import json

import pytest

from kbroker.pipeline import ahead
from kbroker.pipeline.ahead import CONTINUE, Policy, Read, Topic
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.wire import PartitionEnd

READ = Read({"t": Topic("A"), "u": Topic("B", 2)}, {("t", 0): 50, ("t", 1): 7, ("u", 0): 3})
ENDS = {("t", 0): PartitionEnd(10, 70), ("t", 1): PartitionEnd(0, 7), ("u", 0): PartitionEnd(0, 4)}
SAME = {"t": "A", "u": "B"}


def test_what_was_read_is_the_same_after_json() -> None:
    assert Read.of(json.loads(json.dumps(READ.state()))) == READ


def test_what_comes_behind_what_was_read_is_next_so_many_of_a_partition() -> None:
    found = ahead.spans(READ, ENDS, Policy(), most=15)
    assert found == {("t", 0): (50, 65), ("u", 0): (3, 4)}
    assert READ.behind(found).next == {("t", 0): 65, ("t", 1): 7, ("u", 0): 4}


def test_a_new_partition_is_read_from_where_it_begins() -> None:
    assert ahead.spans(Read({}, {}), {("t", 5): PartitionEnd(3, 9)}, Policy()) == {("t", 5): (3, 9)}


def test_records_that_aged_out_before_they_were_read_are_told_or_passed_over() -> None:
    ends = {("t", 0): PartitionEnd(60, 70)}
    with pytest.raises(PipelineError, match=r"t-0 begins at 60, behind 50 .* --allow-gaps"):
        ahead.spans(READ, ends, Policy())
    assert ahead.spans(READ, ends, Policy(allow_gaps=True)) == {("t", 0): (60, 70)}


def test_topics_that_are_the_same_are_read_on() -> None:
    assert ahead.begun(READ, SAME, ENDS, Policy()) == READ
    assert ahead.begun(READ, {"t": "A"}, {}, Policy()) == READ  # u is away


@pytest.mark.parametrize("allow_gaps", [True, False])
def test_another_id_is_another_topic(allow_gaps: bool) -> None:
    with pytest.raises(
        PipelineError, match=r"u was deleted and made again .* \(its id was B and is C\).* generation 3"
    ):
        ahead.begun(READ, {"t": "A", "u": "C"}, ENDS, Policy(allow_gaps))
    found = ahead.begun(READ, {"t": "A", "u": "C"}, ENDS, Policy(allow_gaps, CONTINUE))
    assert (found.topics["u"], found.next) == (Topic("C", 3), {("t", 0): 50, ("t", 1): 7})


def test_a_topic_that_ends_before_where_it_was_read_is_another_even_if_no_broker_tells_ids() -> None:
    nameless = READ._replace(topics={"t": Topic("")})
    ends = {("t", 0): PartitionEnd(0, 49), ("t", 1): PartitionEnd(0, 7)}
    for read, found in ((READ, "A"), (nameless, "")):
        with pytest.raises(PipelineError, match="t-0 ends at 49, before 50 up to which it was read"):
            ahead.begun(read, {"t": found}, ends, Policy())
        assert ahead.begun(read, {"t": found}, ends, Policy(recreated=CONTINUE)).next == ({("u", 0): 3})


def test_an_id_that_comes_to_be_known_is_kept() -> None:
    nameless = READ._replace(topics={"t": Topic("", 4)})
    assert ahead.begun(nameless, {"t": "A"}, ENDS, Policy()).topics["t"] == Topic("A", 4)
    assert ahead.begun(READ, {"t": ""}, ENDS, Policy()).topics["t"] == Topic("A")


def test_a_job_up_to_now_reads_no_further_than_what_was_there() -> None:
    goal = {("t", 0): PartitionEnd(0, 60)}
    assert ahead.no_further(ENDS, goal) == {("t", 0): (10, 60)}
