"""Are values and verdicts right where policies are fitted to a site's own patients? One record for each site and run.

Worlds where the model holds, where Q or the propensities are not of the model's form, where part of the state is
unseen, where no treatment does anything, and where clinicians do almost always what is best. Policies are fitted fold
by fold, as in `fdtr run`; the truth of a method is the mean over folds of V^π, weighted as its patients are. Cells and
sentences are made from these records in `experiments.verdict_cells` and `experiments.verdict_page`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from experiments.comparison import Case, Drawn, Plan, Purpose, Spec, Trial, draw, linear_of, read
from experiments.replications import Kept, Progress, ignore_progress, replicate
from fdtr import Study, Trajectories, VerifiedPolicy, combine, fit_local
from fdtr.evaluation import Assessment, Behaviour
from fdtr.simulation import AS_USUAL, Act, DiscreteSpec, TabularWorld, WorldSpec
from fdtr.site import SiteEvaluation, evaluate_site

Array = NDArray[np.float64]
Record = dict[str, Any]

EXPERIMENT = 53
SIZES = (200, 600, 2000)
SEEDS = 200
FRESH = 2000
FRESH_PER_PATIENT = 10
"""Where values are simulated: so many times as many patients as are evaluated, and `FRESH` at least.

Otherwise the error of the truth would be as large as that of an estimate from many patients.
"""

METHODS = ("FDTR", "LDTR")
DECIMALS = 6


def cases() -> list[Case]:
    """Worlds on which the rules were designed, and those on which they were confirmed once."""
    linear = WorldSpec(n_sites=5, n_shared=5, n_specific=5, n_actions=2, horizon=5)
    ward, crossed = DiscreteSpec(n_sites=5), DiscreteSpec(kind="crossed", n_sites=5)
    design: dict[str, Spec] = {
        "valid": linear,
        "valid, six actions": replace(linear_of("(20,2,5,5)"), n_actions=6, n_shared=2, n_specific=2),
        "ward": ward,
        "crossed": crossed,
        "unseen": replace(ward, habit=True, unseen=("lactate",)),
        "useless": replace(ward, effect=0.0),
        "harmful": replace(crossed, skill=(0.3, 0.15)),
    }
    confirmation: dict[str, Spec] = {
        "valid, softmax": replace(linear, behaviour="softmax"),
        "valid, narrow": replace(linear, behaviour="narrow"),
        "static, deviating": replace(linear, shared_kind="static", deviation=0.8),
        "ward, habits": replace(ward, habit=True),
        "ward, early ends": replace(ward, ends=True),
        "crossed, deviating": replace(crossed, deviation=0.5),
        "unseen, deviating": replace(ward, habit=True, unseen=("lactate",), deviation=0.5),
        "useless, crossed": replace(crossed, effect=0.0),
        "harmful, deviating": replace(crossed, skill=(0.3, 0.15), deviation=0.5),
        "valid, nine sites": replace(linear, n_sites=9, behaviour="softmax"),
        "crossed, nine sites": replace(crossed, n_sites=9, deviation=0.5),
    }
    groups: list[tuple[Purpose, dict[str, Spec], int]] = [("design", design, 0), ("confirmation", confirmation, 100)]
    return [
        Case(name, "", start + number, spec, purpose=purpose)
        for purpose, specs, start in groups
        for number, (name, spec) in enumerate(specs.items())
    ]


def plan_of(seed: int = 0, replications: int = SEEDS, chosen: Sequence[Case] | None = None) -> Plan:
    """All cells: every world at every size."""
    return Plan(EXPERIMENT, replications, FRESH, SIZES, seed, cases() if chosen is None else chosen)


def quick_plan(seed: int = 0) -> Plan:
    """Seconds instead of days: enough to see that everything runs, and for nothing else."""
    linear = WorldSpec(n_sites=3, n_shared=2, n_specific=2, n_actions=2, horizon=2)
    ward = DiscreteSpec(n_sites=3, horizon=2, effect=0.0)
    few = [Case("valid", "", 200, linear), Case("useless", "", 201, ward, purpose="confirmation")]
    return Plan(EXPERIMENT, replications=2, fresh=200, sizes=(120,), seed=seed, cases=few)


def short_names() -> dict[str, Case]:
    """Every case by its name as one word, for a command line: "ward, habits" is "ward-habits"."""
    return {case.called.replace(",", "").replace(" ", "-"): case for case in cases()}


def run_all(
    plan: Plan, processes: int | None = None, progress: Progress = ignore_progress, keep: Path | None = None
) -> list[tuple[Case, Sequence[Mapping[str, Sequence[Record]]]]]:
    """The records of every case, by replication and size."""
    trials = [one for trial in plan.trials() for one in _by_size(trial)]
    kept = Kept[Trial, list[Record]](keep, lambda trial: trial.key, list, list) if keep else None
    order = sorted(range(len(trials)), key=lambda place: (place // len(plan.sizes) % plan.replications, place))
    results = replicate(run_trial, [trials[place] for place in order], "verdicts", processes, progress, kept)
    by_place = dict(zip(order, results, strict=True))
    outcomes = [
        {str(size): by_place[len(plan.sizes) * run + number] for number, size in enumerate(plan.sizes)}
        for run in range(len(trials) // len(plan.sizes))
    ]
    return plan.by_case(outcomes)


def _by_size(trial: Trial) -> list[Trial]:
    fresh = {size: max(trial.fresh, FRESH_PER_PATIENT * int(np.max(size))) for size in trial.sizes}
    return [replace(trial, sizes=(size,), fresh=number) for size, number in fresh.items()]


def run_trial(trial: Trial) -> list[Record]:
    """One replication at one size: a record for each site."""
    drawn, tables = draw(trial)
    ((size, seeds),) = tables.items()
    sites = read(drawn.world, size, seeds).by_site()
    return record_sites(drawn, evaluation_study(drawn.world.study()), sites)


def evaluation_study(written: Mapping[str, Any]) -> Study:
    """A world's study with the default effective sample size of values, on which verified parts depend."""
    relaxed = {name: value for name, value in written["disclosure"].items() if name != "min_effective_sample_size"}
    return Study.model_validate({**written, "disclosure": relaxed})


def record_sites(drawn: Drawn, study: Study, sites: Mapping[str, Trajectories]) -> list[Record]:
    """What evaluation says of every site, and what is true."""
    local = {site: fit_local(study, rows) for site, rows in sites.items()}
    total = combine(fit.summary for fit in local.values())
    return [
        _record(drawn, place, evaluate_site(study, rows, total, local[site].summary))
        for place, (site, rows) in enumerate(sites.items())
    ]


def _record(drawn: Drawn, place: int, evaluation: SiteEvaluation) -> Record:
    shares = np.bincount(evaluation.folds) / len(evaluation.folds)
    names = [name for method in METHODS for name in (method, f"{method} (verified)")]
    values = _true_values(drawn, place, [policy for name in names for policy in evaluation.policies[name]])
    truths = {name: float(shares @ part) for name, part in zip(names, np.split(values[1:], len(names)), strict=True)}
    record: Record = {"behaviour": float(values[0]), "observed": _ends(evaluation.value("Clinicians"))}
    for method in METHODS:
        record[method] = {
            "truth": truths[method],
            "verified truth": truths[f"{method} (verified)"],
            **_estimates(evaluation, method),
            **_advice(drawn, place, evaluation, method),
        }
    return cast(Record, _rounded(record))


def _true_values(drawn: Drawn, place: int, policies: Sequence[Any]) -> Array:
    """What clinicians reach, and each of the policies; a verified part that never speaks is worth what they are.

    Clinicians are valued as a rule that leaves everything to them: then they draw the same where a policy abstains.
    """
    speaks = np.array([not isinstance(policy, VerifiedPolicy) or policy.speaks for policy in policies])
    acts = [_act_of(policy) for policy, heard in zip(policies, speaks, strict=True) if heard]
    behaviour, *others = drawn.values_at(place, [_act_as_usual, *acts])
    values = np.full(1 + len(policies), behaviour)
    values[1:][speaks] = others
    return values


def _act_as_usual(states: Array, _step: int) -> NDArray[Any]:
    return np.full(len(states), AS_USUAL)


def _act_of(policy: Any) -> Act:
    """The rule of a policy; a verified one leaves patients to clinicians."""
    return partial(_advised_act, policy) if isinstance(policy, VerifiedPolicy) else cast(Act, policy.act)


def _advised_act(policy: VerifiedPolicy, states: Array, step: int) -> NDArray[Any]:
    advised, codes = policy.decide(states, step)
    return np.where(advised, codes, AS_USUAL)


def _ends(estimate: Any) -> list[float]:
    return [estimate.value, estimate.standard_error, estimate.low, estimate.high]


def _estimates(evaluation: SiteEvaluation, method: str) -> Record:
    """What is said of the full policy and of its verified part."""
    evaluator = evaluation.evaluator
    full, part = evaluation.targets[method], evaluation.targets[f"{method} (verified)"]
    model = evaluator.compare(full, Behaviour(), "fqe")
    return {
        "verified gain": _assessed(evaluator.assess(part, Behaviour())),
        "full value": _assessed(evaluator.assess(full)),
        "full gain": _assessed(evaluator.assess(full, Behaviour())),
        "linear value": _ends(model.first),
        "linear gain": [model.difference, model.standard_error, model.low, model.high],
        "linear doubt": model.first.reason,
    }


def _assessed(found: Assessment) -> Record:
    return {**vars(found), "verdict": str(found.verdict)}


def _advice(drawn: Drawn, place: int, evaluation: SiteEvaluation, method: str) -> Record:
    """How many decisions differ from those given, and how many of these are worse by the clinicians' exact Q.

    Of the full policy and of the verified part: [share advised otherwise, share harmful], of all decisions. What is
    harmful is NaN where the exact Q of what is seen is not known.
    """
    arrays, world = evaluation.evaluator.data.arrays, drawn.world
    tabular = world if isinstance(world, TabularWorld) and not world.hides else None
    exact = None if tabular is None else tabular.usual_q(place)
    known = 0.0 if exact else np.nan
    counts = {name: np.array([0.0, known]) for name in ("full advice", "verified advice")}
    parts = cast(Sequence[VerifiedPolicy], evaluation.policies[f"{method} (verified)"])
    for fold, policy in enumerate(parts):
        for h, (states, given) in enumerate(zip(arrays.states, arrays.actions, strict=True)):
            mine = evaluation.folds[: len(given)] == fold
            advised, codes = policy.decide(states[:, mine].T, h)
            differs, worse = codes != given[mine], np.zeros(mine.sum(), bool)
            if tabular is not None and exact is not None:
                at = tabular.positions(states[:, mine].T)
                worse = differs & (exact[0][h][codes, at] < exact[1][h][at] - 1e-9)
            counts["full advice"] += differs.sum(), worse.sum()
            counts["verified advice"] += (differs & advised).sum(), (worse & advised).sum()
    total = sum(arrays.counts)
    return {name: (count / total).tolist() for name, count in counts.items()}


def _rounded(value: Any) -> Any:
    """Numbers in fewer digits, so that a file of many records stays small."""
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return round(value, DECIMALS) if isinstance(value, float) else value
