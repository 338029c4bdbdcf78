"""docs/testing.md's example with Spark, run as it is printed: pytest in pytest, with jars that Spark fetches itself."""

from __future__ import annotations

import pytest

from tests.testing.test_docs import EXAMPLES, clients_of

pytestmark = pytest.mark.slow


def test_the_guides_example_with_spark_runs_as_printed(pytester: pytest.Pytester) -> None:
    (source,) = [source for _, source in EXAMPLES if clients_of(source) == {"pyspark"}]
    pytester.makepyfile(test_example=source)
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
