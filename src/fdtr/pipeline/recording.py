"""From the results of a study to its record, and to the tables that are written beside it."""

import csv
import io
import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from fdtr import __version__
from fdtr.inference import NearTies, theorem3_bound_from_total
from fdtr.pipeline.practice import Practice
from fdtr.pipeline.sharing import differences, gains, shared_effects
from fdtr.pipeline.valuing import SiteValues, pooled_values, site_values
from fdtr.report import record
from fdtr.site import FederatedFit, LocalFit, SiteCheck, Split, Variation, message_settings
from fdtr.study import Study
from fdtr.summary import Total

_LIBRARIES = ("numpy", "scipy", "scikit-learn")


def site_record(
    fit: FederatedFit,
    check: SiteCheck,
    practice: Practice,
    ties: NearTies,
    variations: Iterable[Variation],
) -> record.Site:
    """What a study found at one site before it was valued, as plain values."""
    return record.Site(
        patients=check.n_patients,
        rows=check.n_rows,
        clipped=check.clipped,
        filled=check.filled,
        actions=check.action_counts.tolist(),
        identified=[record.Feature(**vars(feature)) for feature in check.identified],
        transitions=[test.p_value for test in check.transitions],
        disclosure=[
            record.Refusal(rule=v.rule.rule, step=v.step, measured=v.measured, asked=v.asked)
            for v in check.verdicts
            if v.refuses and v.step is not None
        ],
        settings=dict(fit.policy.settings),
        given=practice.given.tolist(),
        recommended=practice.recommended.tolist(),
        agreement_with_practice=practice.agreement,
        agreement_with_baselines=dict(practice.as_others),
        variations=[record.Variation(**vars(variation)) for variation in variations],
        near_ties=ties.shares.tolist(),
        withheld=ties.withheld,
        not_valued="",
        trust=None,
    )


def record_of(
    study: Study,
    total: Total,
    local: Mapping[str, LocalFit],
    federated: Mapping[str, FederatedFit],
    sites: dict[str, record.Site],
    values: Mapping[str, SiteValues],
    split: Split,
) -> record.Record:
    """Everything that a study found, as plain values."""
    names = study.feature_map.names[: study.feature_map.n_shared]
    bound = theorem3_bound_from_total(total.significant, study.feature_map.n_features, message_settings(study))
    return record.Record(
        fdtr=__version__,
        versions={"python": platform.python_version(), **{name: version(name) for name in _LIBRARIES}},
        study=study.name,
        fingerprint=study.fingerprint,
        definition=study.public,
        sites=sites,
        split=split,
        values=site_values(values),
        pooled=pooled_values(values, study.horizon),
        shared_effects=shared_effects(study, total, names),
        heterogeneity=differences(total) if names else [],
        gains=gains(total, local, names),
        shared_coefficients=_shared_coefficients(names, federated, sites),
        theorem3_bound=bound.tolist() if names else [],
    )


def _shared_coefficients(
    names: Sequence[str], federated: Mapping[str, FederatedFit], sites: Mapping[str, record.Site]
) -> dict[str, record.Coefficient]:
    """A coefficient that no site's data inform is not identified: its number comes from the ridge alone."""
    average = np.mean([fit.shared_coefficients for fit in federated.values()], axis=0)
    return {
        name: record.Coefficient(
            identified=any(not site.identified[j].reason for site in sites.values()),
            by_step=average[:, j].tolist(),
            by_site={site: fit.shared_coefficients[:, j].tolist() for site, fit in federated.items()},
        )
        for j, name in enumerate(names)
    }


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
