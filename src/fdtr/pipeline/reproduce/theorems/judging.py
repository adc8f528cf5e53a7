"""One replication of the experiments on pessimism: draw a world and its patients, fit, compare with the truth."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdtr.learners.backward import Settings
from fdtr.pipeline.reproduce.replications import anew
from fdtr.pipeline.reproduce.theorems.fitting import fit_together, read_patients
from fdtr.pipeline.reproduce.theorems.truth import Judged, draw_truth
from fdtr.simulation.linear import WorldSpec, make_world
from fdtr.simulation.misspecified import misspecify

PROBES = 300
"""States at which the confidence event is looked at, for every action and step."""


@dataclass(frozen=True, eq=False)
class Trial:
    """What one replication needs: a world's `spec` and `departure` from it, `n` patients a site, settings to try.

    `draws` states from every law of transition find the truth.
    """

    spec: WorldSpec
    departure: float
    n: int
    learning: tuple[Settings, ...]
    draws: int
    seeds: np.random.SeedSequence


def judge_trial(trial: Trial) -> list[list[Judged]]:
    """FDTR with every setting at every site beside the truth: by setting, then by site.

    Messages come from LDTR with the same setting, as in Algorithm 2.
    """
    of_world, of_table, *of_truth = (np.random.default_rng(s) for s in anew(trial.seeds).spawn(2 + trial.spec.n_sites))
    world = misspecify(make_world(trial.spec, of_world), trial.departure)
    patients = read_patients(world.study(), world.table(trial.n, of_table))
    fits = [fit_together(patients, learning).federated for learning in trial.learning]
    by_site: list[list[Judged]] = []
    for site, rng in enumerate(of_truth):  # one site's draws at a time: they are large
        truth = draw_truth(world, site, patients.features, trial.draws, PROBES, rng)
        best, followed = truth.optimum()
        by_site.append([truth.judge(together[site], best, followed) for together in fits])
    return [list(of_setting) for of_setting in zip(*by_site, strict=True)]


@dataclass(frozen=True, eq=False)
class Cell:
    """All that was judged with one setting in one kind of world: by run, then by site."""

    runs: Sequence[Sequence[Judged]]

    def each(self, field: str) -> NDArray[Any]:
        """A field of every judgement, (runs, sites, …)."""
        return np.array([[getattr(judged, field) for judged in run] for run in self.runs])
