"""The rules of a cohort, one after the other: who is kept, and how many each rule removed."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from fdtr.cohort.database import Database
from fdtr.cohort.flow import Flow


def keep_cohort(db: Database, stays: str, what: str, rules: Sequence[tuple[str, str]]) -> Flow:
    """Make `cohort` of the relation `stays` by rules as (text, condition in SQL)."""
    db.make("cohort", f"SELECT * FROM {stays}")
    flow = Flow(what, _count(db))
    for rule, condition in rules:
        flow = _keep(db, flow, rule, condition)
    return flow


def keep_large_sites(rows: pa.Table, flow: Flow, smallest_site: int) -> tuple[pa.Table, Flow]:
    """The `rows` of sites with `smallest_site` stays or more: the last rule, because others make sites smaller."""
    if smallest_site == 1:
        return rows, flow
    found = rows.group_by("site").aggregate([("stay_id", "count_distinct")])
    large = found.filter(pc.greater_equal(found["stay_id_count_distinct"], smallest_site))["site"]
    kept = rows.filter(pc.is_in(rows["site"], large.combine_chunks()))
    left = int(pc.count_distinct(kept["stay_id"]).as_py())
    return kept, flow.then(f"at a site with {smallest_site} of them or more", left=left)


def _keep(db: Database, flow: Flow, rule: str, condition: str) -> Flow:
    db.make("kept", f"SELECT * FROM cohort WHERE {condition}")
    db.make("cohort", "SELECT * FROM kept")
    return flow.then(rule, left=_count(db))


def _count(db: Database) -> int:
    return db.number("SELECT count(*) FROM cohort")
