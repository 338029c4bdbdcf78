"""All rows of the bench in the order they are run and shown: those with a budget of the design first."""

from __future__ import annotations

from benchmarks.harness import crowds, group_rows, java_rows, login_rows, pairs, quota_rows, rows, rule_rows, tls_rows

ALL: tuple[type[rows.Row], ...] = (
    *rows.BUDGETED,
    *tls_rows.ROWS,
    *rule_rows.ROWS,
    *quota_rows.ROWS,
    *login_rows.ROWS,
    *rows.WATCHED,
    *crowds.ROWS,
    *group_rows.ROWS,
    *pairs.ROWS,
    *java_rows.ROWS,
)
