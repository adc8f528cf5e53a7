"""From the results of a study to its record, and to the tables that are written beside it."""

from __future__ import annotations

import csv
import io
import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fdtr import __version__
from fdtr.inference import theorem3_bound_from_total
from fdtr.pipeline.sharing import differences, gains, shared_effects
from fdtr.pipeline.valuing import pooled_values, site_values, trust_of
from fdtr.report import record
from fdtr.site import message_settings

if TYPE_CHECKING:
    from fdtr.pipeline.results import Results

_LIBRARIES = ("numpy", "scipy", "scikit-learn")


def record_of(results: Results) -> record.Record:
    """Everything that a study found, as plain values."""
    study, names = results.study, results.shared_names
    coefficients = zip(names, results.identified, results.shared_coefficients.T.tolist(), strict=True)
    bound = theorem3_bound_from_total(results.total.significant, study.feature_map.n_features, message_settings(study))
    return record.Record(
        fdtr=__version__,
        versions={"python": platform.python_version(), **{name: version(name) for name in _LIBRARIES}},
        study=study.name,
        fingerprint=study.fingerprint,
        definition=study.public,
        sites={site: _site(results, site) for site in results.checks},
        split=results.split,
        values=site_values(results.evaluations),
        pooled=pooled_values(results.evaluations),
        shared_effects=shared_effects(study, results.total, names),
        heterogeneity=differences(results.total) if names else [],
        gains=gains(results.total, results.local, names),
        shared_coefficients={
            name: record.Coefficient(
                identified=known,
                by_step=by_step,
                by_site={site: fit.shared_coefficients[:, j].tolist() for site, fit in results.federated.items()},
            )
            for j, (name, known, by_step) in enumerate(coefficients)
        },
        theorem3_bound=bound.tolist() if names else [],
    )


def _site(results: Results, site: str) -> record.Site:
    check, practice, ties = results.checks[site], results.practice[site], results.near_ties[site]
    evaluation = results.evaluations.get(site)
    return record.Site(
        patients=check.n_patients,
        rows=check.n_rows,
        clipped=check.clipped,
        filled=check.filled,
        actions=check.action_counts.tolist(),
        identified=[record.Feature(**vars(found)) for found in check.identified],
        transitions=[test.p_value for test in check.transitions],
        disclosure=[
            record.Refusal(rule=v.rule.rule, step=v.step, measured=v.measured, asked=v.asked)
            for v in check.verdicts
            if v.refuses and v.step is not None
        ],
        settings=dict(results.federated[site].policy.settings),
        given=practice.given.tolist(),
        recommended=practice.recommended.tolist(),
        agreement_with_practice=practice.agreement,
        agreement_with_baselines=dict(practice.as_others),
        variations=[record.Variation(**vars(found)) for found in results.variations[site]],
        near_ties=ties.shares.tolist(),
        withheld=ties.withheld,
        not_valued=results.not_valued.get(site, ""),
        trust=trust_of(evaluation, results.study.actions.labels) if evaluation else None,
    )


def tables_of(found: record.Record) -> dict[str, str]:
    """The tables written beside results.json, by file name, as CSV."""
    coefficients = [
        [step, name, one.by_step[step], "yes" if one.identified else "no"]
        for step in range(found.definition["horizon"])
        for name, one in found.shared_coefficients.items()
    ]
    return {
        "shared-coefficients.csv": _csv(["step", "feature", "coefficient", "identified"], coefficients),
        "values.csv": _rows_csv(record.Value, found.values),
        "shared-effects.csv": _rows_csv(record.Effect, found.shared_effects),
    }


def _rows_csv(kind: type[record.Part], rows: Sequence[record.Part]) -> str:
    columns = list(kind.model_fields)
    return _csv(columns, ([_cell(getattr(row, column)) for column in columns] for row in rows))


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value != value else value  # NaN


def _csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()
