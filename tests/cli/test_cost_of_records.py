"""What a record costs the processor in `kbroker produce` and `consume`: whole commands, as processes."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow
RECORDS = 200_000
MOST = 4  # half of it is what they take
BARE_LOOP = """
import sys
for line in sys.stdin.buffer:
    key, value = line.rstrip(b"\\n").split(b":", 1)
    sys.stdout.buffer.write(b"%s:%s\\n" % (key, value))
"""


def processor_s(*words: str, given: bytes = b"") -> tuple[float, bytes]:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, *words], input=given, stdout=subprocess.PIPE, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def kbroker(bootstrap: str, words: str) -> list[str]:
    return ["-m", "kbroker", *words.split(), "-b", bootstrap]


@pytest.mark.parametrize("form", ["", "-G readers"])
def test_a_command_takes_four_times_a_bare_loop_over_the_records_at_most(bootstrap: str, form: str) -> None:
    lines = b"".join(b"%d:record\n" % at for at in range(RECORDS))
    topic = f"cost{len(form)}"
    taken = []
    for turn in range(3):  # the machine may have other work
        bare, _ = processor_s("-c", BARE_LOOP, given=lines)
        written, _ = processor_s(*kbroker(bootstrap, f"produce -t {topic}-{turn} -K :"), given=lines)
        read, out = processor_s(*kbroker(bootstrap, f"consume -t {topic}-{turn} -o beginning -e -K : {form}"))
        assert out == lines
        taken.append((bare, written, read))
        if max(written, read) <= MOST * bare:
            break
    else:
        pytest.fail(f"seconds of the processor for {RECORDS} records (bare, written, read): {taken}")
