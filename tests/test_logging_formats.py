"""The type checker looks at the formats of log lines."""

from __future__ import annotations

from pathlib import Path

import pytest
from mypy import api

ROOT = Path(__file__).parent.parent
HEAD = "import logging\nlog = logging.getLogger()\n"


@pytest.mark.slow
def test_a_log_line_whose_values_do_not_fit_its_format_is_refused(tmp_path: Path) -> None:
    source, settings = tmp_path / "lines.py", tmp_path / "mypy.ini"
    settings.write_text(f"[mypy]\nplugins = {ROOT / 'scripts' / 'logging_formats.py'}\ncache_dir = {tmp_path}\n")
    source.write_text(
        HEAD
        + 'log.info("%d", "text".index)\n'
        + 'log.warning("%s", "text".index)\n'
        + 'log.error("%d and %s", 1)\n'
        + 'log.info("%d", "1")\n'
        + 'log.info("%d %s %5.2f %% %x %r", 1, "text", 1.5, 255, None)\n'
        + 'log.info("%s", ValueError)\n'
        + 'log.info("100 %")\n'
    )
    said, _, _ = api.run(["--config-file", str(settings), str(source)])
    lines = [int(line.split(":")[1]) for line in said.splitlines() if ": error:" in line]
    assert lines == [3, 4, 5, 6], said
