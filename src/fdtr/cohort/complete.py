"""The complete cases of a cohort: every step, and every covariate and the outcome at every step.

Who has all steps was alive and there at the last: to take complete cases is to look ahead, and what is learnt from them
holds for survivors. The paper's cohort is of this kind; it belongs beside the whole cohort, as a sensitivity analysis.
"""

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from fdtr.cohort.settings import MISSING
from fdtr.cohort.steps import Extracted, count_missing
from fdtr.errors import EmptyCohort


def complete_cases(extracted: Extracted) -> Extracted:
    """The stays that have everything; the flow says how many had not. The table has no `end`: nobody's is early.

    Raises EmptyCohort where no stay has everything.
    """
    settings, table = extracted.settings, extracted.table
    counts = table.group_by("patient").aggregate([("step", "count")])
    short = counts.filter(pc.less(counts["step_count"], settings.steps))["patient"]
    whole = _without(table, short)
    flow = extracted.flow.then(f"there for all {settings.steps} steps", left=whole.num_rows // settings.steps)
    if settings.outcome.unmeasured is None:
        whole = _without(whole, pa.array(sorted(extracted.carried), pa.string()))
        rule = f"{settings.outcome.name} known at the end of every step"
        flow = flow.then(rule, left=whole.num_rows // settings.steps)
    gaps = [whole[f"{covariate.name}{MISSING}"] for covariate in settings.covariates]
    lacking = pc.fill_null(pc.greater(_total(gaps), 0), False)
    kept = _without(whole, pc.unique(whole.filter(lacking)["patient"]))
    flow = flow.then("every covariate known at every step", left=kept.num_rows // settings.steps)
    if kept.num_rows == 0:
        most = max(flow.removals[len(extracted.flow.removals) :], key=lambda one: one.removed)
        raise EmptyCohort(
            f"No stay is a complete case. Most of {extracted.flow.left:,} were removed by the rule “{most.rule}” "
            f"({most.removed:,}). Where complete cases are wanted, leave out the covariates that missing.csv "
            "shows to be rare."
        )
    return replace(extracted, table=kept.drop_columns(["end"]), flow=flow, missing=count_missing(kept, settings))


def _without(table: pa.Table, patients: pa.Array) -> pa.Table:
    return table.filter(pc.invert(pc.is_in(table["patient"], pa.array(patients.to_pylist(), pa.string()))))


def _total(columns: list[pa.ChunkedArray]) -> pa.ChunkedArray:
    total = columns[0]
    for column in columns[1:]:
        total = pc.add(total, column)
    return total
