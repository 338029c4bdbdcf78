"""docs/testing.md does what it says: each example is run as it is printed, and fails where it says that it fails.

Here those that need pytest and kafka-python. All but Spark's are run from an installed wheel by
compat_tests/test_guide.py, and Spark's by tests/pipeline/test_guide.py.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kbroker.faults.file import DiskPlan, read_faults

pytestmark = pytest.mark.slow

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text()
EXAMPLES = re.findall(r"(<!-- fails -->\n)?```python\n(.*?)```", PAGE, re.DOTALL)
OTHER_CLIENTS = re.compile(r"^(?:import|from) (aiokafka|confluent_kafka|pyspark)", re.MULTILINE)


def clients_of(source: str) -> set[str]:
    """What an example imports beyond pytest and kafka-python."""
    return set(OTHER_CLIENTS.findall(source))


def test_there_are_examples() -> None:
    assert len(EXAMPLES) > 8
    assert {"aiokafka", "confluent_kafka", "pyspark"} == set().union(*(clients_of(source) for _, source in EXAMPLES))


@pytest.mark.parametrize("number", [at for at, (_, source) in enumerate(EXAMPLES) if not clients_of(source)])
def test_an_example_runs_as_printed(pytester: pytest.Pytester, number: int) -> None:
    fails, source = EXAMPLES[number]
    pytester.makepyfile(**{f"test_example_{number}": source})
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    assert result.parseoutcomes().keys() & {"passed", "failed"} == {"failed" if fails else "passed"}
    if fails:
        result.stdout.fnmatch_lines(["*- kafka -*", "*Produce v* -> NOT_LEADER_OR_FOLLOWER*"])


def test_the_first_test_has_no_warnings_with_the_filter_that_is_printed(pytester: pytest.Pytester) -> None:
    (ini,) = re.findall(r"```ini\n(.*?)```", PAGE, re.DOTALL)
    pytester.makeini(ini)
    pytester.makepyfile(test_first=EXAMPLES[0][1])
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    assert result.parseoutcomes() == {"passed": 1}


def test_the_file_of_faults_is_read_as_printed() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert repr(read_faults(text, "faults.toml").faults).splitlines() == [
        "acts like Kafka 2.8",
        "on('Produce', topic='orders').fail(NOT_LEADER_OR_FOLLOWER) met 0",
        "on('Fetch').delay(ms=500, after=True) met 0",
    ]
    assert read_faults(text, "faults.toml").disk == DiskPlan(slow_ms=20, full_after_bytes=10_000_000)
