"""A complete example study on simulated data: five hospitals, one study, and what sharing sums gains."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fdtr.comparisons import CLINICIANS, FDTR, VERIFIED
from fdtr.container import write_atomically
from fdtr.errors import OutputExists
from fdtr.pipeline.result_folder import staged_folder, table_as_csv
from fdtr.pipeline.results import Results
from fdtr.pipeline.run import run
from fdtr.progress import Progress, Steps, ignore_progress, stage
from fdtr.report.record import RESULTS_FILE, Choice, Example, KnownValue
from fdtr.simulation import sepsis
from fdtr.site.rows import read_trajectories
from fdtr.study import Study
from fdtr.verified_policy import VerifiedPolicy

Act = Callable[..., NDArray[np.intp]]

SEED = 0
FRESH_PATIENTS = 20_000
VALUES_NOTE = (
    f"Each method's policies treated {FRESH_PATIENTS:,} fresh simulated patients at each hospital, the same patients "
    "for every method; the value is the mean of their summed rewards, averaged over hospitals. The 95% intervals "
    "cover the simulation's error, not that of drawing another training cohort."
)


def run_demo(folder: str | Path, *, fresh: bool = False, progress: Progress = ignore_progress) -> Results:
    """Simulate the cohort, fit everybody, value every policy on fresh patients, and write it all into `folder`.

    A study file or table that was edited there is not overwritten, unless `fresh` asks for it.
    """
    target = Path(folder)
    study_text = sepsis.study_text().encode()
    table = table_as_csv(sepsis.simulate_table(np.random.default_rng(SEED)))
    if not fresh:
        _protect_edits(target, {"study.toml": study_text, "table.csv": table})
    with staged_folder(target, mark=RESULTS_FILE) as staging:
        write_atomically(staging / "study.toml", study_text)
        write_atomically(staging / "table.csv", table)
        study = Study.load(staging / "study.toml")
        results = run(study, read_trajectories(staging / "table.csv", study), progress=stage(progress, 0, 65))
        known = {
            "known_values": value_methods(results, progress=stage(progress, 65, 90)),
            "known_values_note": VALUES_NOTE,
            "example": _example(results),
        }
        results = replace(results, record=results.record.model_copy(update=known))
        progress("policies, tables and report", 90, 100)
        results.write_files(staging)
    progress("done", 100, 100)
    return results


def value_methods(results: Results, n: int = FRESH_PATIENTS, progress: Progress = ignore_progress) -> list[KnownValue]:
    """Every method's value on fresh patients of the same hospitals, clinicians first, then from low to high.

    The verified part of FDTR leaves patients whom it does not advise to clinicians.
    """
    hospitals = {hospital.name: hospital for hospital in sepsis.hospitals()}
    acts: dict[str, Mapping[str, Act]] = {CLINICIANS: _clinicians(hospitals)}
    for method, policies in results.methods.items():
        acts[method] = {site: policy.act for site, policy in policies.items()}
    acts[VERIFIED[FDTR]] = {
        site: _with_part(results.verified[site], act) for site, act in _clinicians(hospitals).items()
    }
    steps, valued = Steps(progress, len(acts)), []
    for method, by_site in acts.items():
        steps.begin(f"{method}: fresh patients")
        valued.append(_value(method, by_site, hospitals, n))
    steps.end()
    return [valued[0], *sorted(valued[1:], key=lambda value: (value.value, value.method == FDTR))]


def _clinicians(hospitals: Mapping[str, sepsis.Hospital]) -> dict[str, Act]:
    """The clinicians of each hospital, with the same luck in every call."""
    return {
        name: sepsis.clinicians(hospital, np.random.default_rng([SEED, 2, number]))
        for number, (name, hospital) in enumerate(hospitals.items())
    }


def _with_part(verified: VerifiedPolicy, clinicians: Act) -> Act:
    """What the verified part advises, and what clinicians choose where it advises nothing."""

    def act(states: NDArray[np.float64], step: int) -> NDArray[np.intp]:
        return verified.act(states, step, given=clinicians(states, step))

    return act


def _value(
    method: str,
    acts: Mapping[str, Act],
    hospitals: Mapping[str, sepsis.Hospital],
    n: int,
) -> KnownValue:
    outcomes = {
        name: sepsis.rollout(hospital, acts[name], n, np.random.default_rng([SEED, 1, number]))
        for number, (name, hospital) in enumerate(hospitals.items())
    }
    by_site = {name: float(outcome.mean()) for name, outcome in outcomes.items()}
    value = float(np.mean(list(by_site.values())))
    error = float(np.sqrt(sum(outcome.var(ddof=1) / n for outcome in outcomes.values()))) / len(outcomes)
    return KnownValue(method=method, value=value, low=value - 1.96 * error, high=value + 1.96 * error, by_site=by_site)


def _example(results: Results) -> Example:
    """What each hospital's policy recommends for one made-up patient."""
    patient = sepsis.EXAMPLE_PATIENT
    explanations = {site: fit.policy.explain(patient, 0) for site, fit in results.federated.items()}
    by_site = {
        site: [Choice.of(action, chosen=action == explanation.chosen) for action in explanation.actions]
        for site, explanation in explanations.items()
    }
    return Example(state=dict(patient), step=0, by_site=by_site)


def _protect_edits(target: Path, originals: Mapping[str, bytes]) -> None:
    for name, original in originals.items():
        place = target / name
        if place.exists() and place.read_bytes() != original:
            raise OutputExists(
                f"{place} was edited and stays as it is. To run the study with your edits:\n"
                f"  fdtr run {target}/study.toml {target}/table.csv --out {target}-mine\n"
                "To start over, use fdtr demo --fresh, or --out with another folder."
            )
