"""What `fdtr site evaluate` prints and writes: gains and values, what may leave, and a page for the site."""

from math import isfinite
from pathlib import Path
from typing import Any

from fdtr.cli import show
from fdtr.comparisons import CLINICIANS, GAINS, LEGEND
from fdtr.container import write_atomically
from fdtr.disclosure import ValueMessage
from fdtr.inference.near_ties import near_ties
from fdtr.pipeline.study_record import assessment_records, subgroup_records, value_record, value_site
from fdtr.report.record import Subgroup
from fdtr.site.fitting import FederatedFit
from fdtr.site.site_evaluation import SiteEvaluation, Split, gains_by_group
from fdtr.study import Study
from fdtr.trajectories import Trajectories


def write_page(
    study: Study, rows: Trajectories, fitted: FederatedFit, evaluation: SiteEvaluation, split: Split, path: Path
) -> None:
    """Write the site's own page, with the near ties of its `fitted` policy. Disclosure does not check it."""
    from fdtr.report.render import render_site_page  # charts take a second to load

    site, estimates = evaluation.site, value_site(study, evaluation)
    ties = near_ties(rows, study.feature_map, fitted.policy_fit)
    page = render_site_page(
        study,
        site,
        assessment_records(site, estimates),
        _subgroups(study, evaluation),
        estimates.trust,
        estimates.n,
        near_ties=ties.shares.tolist(),
        withheld=ties.withheld,
        n_clusters=rows.n_clusters if evaluation.clustered else None,
        split=split,
        sample=evaluation.sample,
    )
    write_atomically(path, page.encode())


def show_evaluation(study: Study, evaluation: SiteEvaluation) -> None:
    """Print gains and values at one site with their verdicts, why these are not better, and FDTR's weights by step."""
    patients = f"{evaluation.evaluator.rows.n_patients:,} patients, none treated by a policy fitted to them"
    if evaluation.sample is not None:
        patients = f"{evaluation.sample}, none treated by a policy fitted to them"
    for pairs in (GAINS, [(name, "") for name in evaluation.targets]):
        rows, reasons = [], []
        for name, over in pairs:
            assessed = evaluation.assess(name, over or None)
            label, verdict = f"{name} over {over}" if over else name, str(assessed.verdict)
            acts = f"{assessed.advised_share:.0%}" if name != CLINICIANS else "–"
            rows.append(show.AssessedRow(label, assessed, verdict, acts))
            reasons += [[label, verdict, assessed.reason]] if assessed.reason else []
        what = "gain" if pairs is GAINS else "value"
        show.values_table(f"{evaluation.site}: {what} to {patients}", study, rows, "acts in", gains=pairs is GAINS)
        if reasons:
            show.table("Why these are not verified", ["of", "verdict", "why"], reasons, keys=2)
    show.subgroups_table(_subgroups(study, evaluation))
    show.line(LEGEND)
    diagnostics = evaluation.diagnostics()
    weights = diagnostics.weights
    shares = (weights.zero_share, weights.largest_share, diagnostics.overlap.rare_share)
    show.table(
        "FDTR's importance weights by step",
        ["step", "patients", "worth", "mean", "without weight", "heaviest", "asks for the rarely done"],
        [
            [
                str(h),
                f"{diagnostics.present[h]:,}",
                f"{weights.effective_sample_size[h]:.1f}",
                f"{weights.mean[h]:.2f}",
                *(f"{share[h]:.0%}" if isfinite(share[h]) else "–" for share in shares),
            ]
            for h in range(study.horizon)
        ],
    )
    estimates = [evaluation.value("FDTR", "wdr"), evaluation.value("FDTR", "fqe")]
    for warning in dict.fromkeys(caution.sentence for e in estimates for caution in e.warnings):
        show.line(f"FDTR: {warning}")
    show.line()


def _subgroups(study: Study, evaluation: SiteEvaluation) -> list[Subgroup]:
    """The verified gain in each declared group, as every output shows it."""
    return subgroup_records(evaluation.site, gains_by_group(study, evaluation))


def show_released_values(message: ValueMessage) -> None:
    """Print how many values may leave the site, and which stay and why."""
    n_values, n = len(message.values.values), message.values.n
    show.line(f"May leave the site: {n_values} gains and values with standard errors, and {n:,}, how many patients.")
    if message.withheld:
        rows = [[value.estimate.name, value.why] for value in message.withheld]
        show.table("These stay at home", ["of", "why"], rows)


def evaluation_json(
    study: Study, evaluation: SiteEvaluation, message: ValueMessage | None, out: Path | None
) -> dict[str, Any]:
    """All estimates at one site, how far to trust them, and what was released."""
    estimated = value_site(study, evaluation)
    released = None
    if message is not None:
        names = [{"method": value.method, "over": value.over} for value in message.values.values]
        withheld = [
            {"method": value.estimate.method, "over": value.estimate.over, "why": value.why}
            for value in message.withheld
        ]
        released = {"file": out, "values": names, "withheld": withheld}
    return {
        "site": evaluation.site,
        "patients": evaluation.evaluator.rows.n_patients,
        "sample": evaluation.sample,
        "assessments": [
            {"method": method, "over": over, **vars(assessed)}
            for (method, over), assessed in estimated.assessments.items()
        ],
        "subgroups": _subgroups(study, evaluation),
        "methods": {
            method: {
                estimator: {
                    **value_record(evaluation.site, estimate, method, estimated).model_dump(),
                    "effective_sample_size": estimate.effective_sample_size.tolist(),
                    "warnings": [{"name": caution.kind, "sentence": caution.sentence} for caution in estimate.warnings],
                }
                for estimator, estimate in estimates.items()
            }
            for method, estimates in estimated.estimates.items()
        },
        "trust": estimated.trust,
        "released": released,
    }
