"""The rules of a cohort, one after the other: who is kept, and how many each rule removed."""

from collections.abc import Sequence

from fdtr.cohort.database import Database
from fdtr.cohort.flow import Flow


def keep_cohort(db: Database, stays: str, what: str, rules: Sequence[tuple[str, str]], smallest_site: int) -> Flow:
    """Make `cohort` of the relation `stays`, whose column `site` counts, by rules as (text, condition in SQL).

    Sites that are then left with fewer than `smallest_site` stays go last.
    """
    db.make("cohort", f"SELECT * FROM {stays}")
    flow = Flow(what, _count(db))
    for rule, condition in rules:
        flow = _keep(db, flow, rule, condition)
    if smallest_site == 1:
        return flow
    large = f"SELECT site FROM cohort GROUP BY site HAVING count(*) >= {smallest_site}"
    return _keep(db, flow, f"at a site with {smallest_site} of them or more", f"site IN ({large})")


def _keep(db: Database, flow: Flow, rule: str, condition: str) -> Flow:
    db.make("kept", f"SELECT * FROM cohort WHERE {condition}")
    db.make("cohort", "SELECT * FROM kept")
    return flow.then(rule, left=_count(db))


def _count(db: Database) -> int:
    return db.number("SELECT count(*) FROM cohort")
