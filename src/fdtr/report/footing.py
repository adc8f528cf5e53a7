"""The sections on what the results stand on: data, identification, transitions, disclosure, settings."""

from collections.abc import Mapping, Sequence

import numpy as np

from fdtr.disclosure import Verdict
from fdtr.inference import SMALL_P
from fdtr.report.page import (
    Html,
    bullets,
    counted,
    enumerated,
    grouped_table,
    number,
    p_value,
    paragraph,
    percent,
    step_titles,
    table,
    tag,
)
from fdtr.site import SiteCheck
from fdtr.study import Study

Checks = Mapping[str, SiteCheck]


def data(study: Study, checks: Checks) -> list[Html]:
    """Patients, rows, changed values and actions of every site."""
    rows = [
        [site, f"{found.n_patients:,}", f"{found.n_rows:,}", _tally(found.clipped), _tally(found.filled)]
        for site, found in checks.items()
    ]
    actions = {
        site: [
            [label, *(f"{n:,}" for n in found.action_counts[:, a].tolist())]
            for a, label in enumerate(study.actions.labels)
        ]
        for site, found in checks.items()
    }
    return [
        table(
            "Patients and rows, and values changed on reading",
            ["Hospital", "Patients", "Rows", "Clipped to the public range", "Missing and filled"],
            rows,
            text=(3, 4),
        ),
        grouped_table("Patients by action and step", ["Action", *step_titles(range(study.horizon))], actions),
    ]


def _tally(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {n:,}" for name, n in counts.items() if n) or "none"


def identification(checks: Checks) -> list[Html]:
    """How much each shared feature can say at each site, and why some can say nothing."""
    sites = {site: {found.feature: found for found in check.identified} for site, check in checks.items()}
    features = list(dict.fromkeys(feature for found in sites.values() for feature in found))
    if not features:
        return [paragraph("The study has no shared feature.")]
    rows = [
        [feature, *("0%" if found[feature].reason else percent(found[feature].retained) for found in sites.values())]
        for feature in features
    ]
    silent = _silent_features(checks)
    return [
        paragraph(
            "A shared effect is learnt from what is left of its feature once the hospital's own effects are "
            "free: 100% means all of it is left, 0% that this hospital says nothing about it."
        ),
        table("Share of each shared feature that is left, averaged over steps", ["Feature", *sites], rows),
        bullets(silent) if silent else paragraph("Every shared feature carries information at every hospital."),
    ]


def _silent_features(checks: Checks) -> list[str]:
    """One sentence for each reason why features carry no information, with the features and the sites."""
    where: dict[tuple[str, str], list[str]] = {}
    for site, check in checks.items():
        for found in check.identified:
            if found.reason:
                where.setdefault((found.feature, found.reason), []).append(site)
    together: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (feature, reason), sites in where.items():
        together.setdefault((reason, tuple(sites)), []).append(feature)
    return [
        f"No information at {'any hospital' if len(sites) == len(checks) else enumerated(sites)} on "
        f"{enumerated(features)}. Reason{' for each' if len(features) > 1 else ''}: {reason}."
        for (reason, sites), features in together.items()
    ]


def unidentified(checks: Checks) -> set[str]:
    """Shared features about which no site says anything: their coefficients mean nothing."""
    silent = [{found.feature for found in check.identified if found.reason} for check in checks.values()]
    return set.intersection(*silent) if silent else set()


def transitions(study: Study, checks: Checks) -> list[Html]:
    """The F tests of every site and step."""
    if study.horizon == 1:
        return [paragraph("There is one step, so there are no transitions to test.")]
    rows = [[site, *(_marked(test.p_value) for test in check.transitions)] for site, check in checks.items()]
    columns = ["Hospital", *step_titles(range(study.horizon - 1))]
    return [
        paragraph(
            "The model says that the shared features do not help to predict what comes next, once the "
            "hospital's own features are known. A small p says that they do help there: then what was learnt "
            'together may mislead, and share = "reward" under [learning], which shares less, is worth a try.'
        ),
        table("p-values of the F test, by step", columns, rows),
        tag("p", *_about_tests(checks), class_="quiet"),
    ]


def _about_tests(checks: Checks) -> list[str]:
    tests = [test.p_value for check in checks.values() for test in check.transitions]
    made = [p for p in tests if np.isfinite(p)]
    said = []
    if made:
        small = sum(p < SMALL_P for p in made)
        said.append(
            f"* below {SMALL_P:g}: {small} of {counted(len(made), 'test')}; by chance alone about "
            f"{number(len(made) * SMALL_P)} would be. With few patients a misfit may stay hidden; with very many "
            "even a harmless one shows. "
        )
    if len(made) < len(tests):
        said.append("– no test can be made: no shared feature carries information, or too few patients are left over.")
    return said


def _marked(p: float) -> str:
    return f"{p_value(p)} *" if p < SMALL_P else p_value(p)


def disclosure(study: Study, checks: Checks) -> list[Html]:
    """Whether each site would be allowed to send, and if not, by which rules."""
    rows = []
    for site, check in checks.items():
        broken = [verdict for verdict in check.verdicts if not verdict.holds]
        failing = bullets(_by_rule(broken)) if broken else "none"
        rows.append([site, "refused" if broken else "passes", failing])
    least = study.disclosure.min_sites
    return [
        paragraph(
            "Nothing was sent here. This is what the rules would say to each hospital's sums. "
            f"Where sums are combined, rule SITES also asks for at least {counted(least, 'hospital')}."
        ),
        table("Disclosure rules, by hospital", ["Hospital", "Result", "Rules that fail"], rows, text=(1, 2)),
    ]


def _by_rule(broken: Sequence[Verdict]) -> list[str]:
    """One line for each rule: where it fails, and the first failure in full."""
    rules = dict.fromkeys(verdict.rule for verdict in broken)
    lines = []
    for rule in rules:
        failed = [verdict for verdict in broken if verdict.rule is rule]
        steps = enumerated([str(verdict.step) for verdict in failed])
        first = f"{failed[0].measured}; the study asks for {failed[0].asked}"
        at_first = f" (at step {failed[0].step})" if len(failed) > 1 else ""
        lines.append(f"{rule.rule} at step{'s' if len(failed) > 1 else ''} {steps}: {first}{at_first}.")
    return lines


def _number_or_auto(value: float | str) -> str:
    return value if isinstance(value, str) else number(value)


def settings(study: Study, version: str) -> list[Html]:
    """What the method was told, in words and symbols."""
    learning, features, (low, high) = study.learning, study.features, study.reward.range
    shared = {
        "value": "values, as in the paper",
        "reward": "rewards alone",
        "auto": "values or rewards, as each hospital's own held-out patients say",
    }[learning.share]
    rows = [
        ["Pessimism", "c", _number_or_auto(learning.pessimism), "how much is taken off where data are few; 0: nothing"],
        ["Ridge", "λ", _number_or_auto(learning.ridge), "how strongly coefficients are drawn to 0"],
        ["Sharing", "w", _number_or_auto(learning.sharing), "weight on the other hospitals' sums: 1 in full, 0 alone"],
        ["What is shared", "", learning.share, shared],
        ["Failure probability", "ξ", number(learning.failure_probability), "of the confidence bound"],
        ["Misspecification", "η", number(learning.misspecification), "largest error of the linear model"],
        ["Steps", "H", str(study.horizon), "counted from 0 here, as in the data"],
        ["Reward", "r", f"{number(low)} to {number(high)}", "the range that is mapped onto [0, 1]"],
        ["Intercept", "", features.intercept, "whose baseline it is"],
        ["Scaling", "", features.scale, "unit: ranges onto [0, 1], features to a norm of at most 1"],
    ]
    for end, worth in study.ends.items():
        rows.append([f"End: {end}", "", number(worth), "worth of each step that is missing"])
    return [
        table("Settings of the study", ["Setting", "Symbol", "Value", "Meaning"], rows, text=(1, 3)),
        paragraph("Study fingerprint: ", tag("code", study.fingerprint)),
        paragraph("fdtr version: ", tag("code", version)),
    ]
