"""A site's Table 1: its patients at the first step, as a group."""

from collections.abc import Iterator

import numpy as np

from fdtr import container
from fdtr.disclosure import Release, TableOne, release_table
from fdtr.disclosure.table_one import Fact, Groups, Measured
from fdtr.errors import NotNoised
from fdtr.site.rules import map_fingerprint
from fdtr.site.tables import require_rows
from fdtr.study import Study
from fdtr.trajectories import Trajectories


def tell_table(study: Study, rows: Trajectories) -> TableOne:
    """Table 1 of one site: covariates and actions at the first step, and who was followed to the last one."""
    require_rows(study, rows)
    asked = study.disclosure
    if asked.epsilon is not None:
        raise NotNoised(
            "The study asks for differential privacy (epsilon), and a Table 1 would leave this site without noise. "
            "None was written."
        )
    facts = list(_facts(study, rows))
    return release_table(rows.site, study.fingerprint, rows.n_patients, facts, asked.min_patients, asked.min_cell)


def release_of_table(study: Study, rows: Trajectories, table: TableOne) -> Release:
    """A Table 1 as the ledger knows it: beside the site's sums, as if of features of its own."""
    return Release(
        study=study.fingerprint,
        feature_map=container.fingerprint({"table_of": map_fingerprint(study)}),
        site=rows.site,
        message=table.digest,
        content=table.content,
        margin=study.disclosure.once_margin,
        patients=rows.patients.to_pylist(),
    )


def _facts(study: Study, rows: Trajectories) -> Iterator[Fact]:
    parts = list(rows.step(0).chunks())
    states = np.concatenate([part.states for part in parts], axis=1)
    actions = np.bincount(np.concatenate([part.actions for part in parts]), minlength=len(study.actions.levels))
    for covariate, values in zip(study.covariates, states, strict=True):
        if covariate.level == "site":
            continue  # about the site, not about its patients
        levels, counts = np.unique(values, return_counts=True)
        if len(levels) == 2:
            yield Groups(
                covariate.name, {f"{level:g}": int(count) for level, count in zip(levels, counts, strict=True)}
            )
        else:
            yield Measured(covariate.name, values)
    yield Groups("first action", {label: int(n) for label, n in zip(study.actions.labels, actions, strict=True)})
    whole = rows.step(study.horizon - 1).n
    if study.ends:
        yield Groups("followed to the last step", {"yes": whole, "no": rows.n_patients - whole})
