"""The five hospitals of the demo as a world like the others: sampled, valued, or led one step at a time."""

import tomllib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdtr.simulation import sepsis
from fdtr.simulation.worlds import Act, Array, Codes, FullLength


@dataclass(frozen=True, eq=False)
class HospitalWorld(FullLength):
    """`hospitals` (K,) as `fdtr.simulation.sepsis` describes them; how many patients each has does not matter here."""

    hospitals: tuple[sepsis.Hospital, ...]

    def study(self, **learning: Any) -> dict[str, Any]:
        """The demo's study file; `learning` goes into its [learning]."""
        content = tomllib.loads(sepsis.study_text())
        return {**content, "learning": {**content["learning"], **learning}}

    def behaviour(self, site: int, rng: np.random.Generator) -> Act:
        """What the hospital's clinicians do; they draw from `rng`."""
        return sepsis.clinicians(self.hospitals[site], rng)

    def arrive(self, site: int, n: int, rng: np.random.Generator) -> Array:
        """x of `n` fresh patients, (n, q): as if they had been average and untreated until now."""
        hospital = self.hospitals[site]
        untreated = np.zeros(n, dtype=np.intp)
        return sepsis.next_states(hospital, np.tile(hospital.level, (n, 1)), untreated, *self.luck(site, 0, n, rng))

    def luck(self, site: int, step: int, n: int, rng: np.random.Generator) -> tuple[Codes, Array, Array]:  # noqa: ARG002
        """Which covariate drives (n,), a number that gives its direction (n,), and draws around the mean (n, q)."""
        driver = rng.choice(len(sepsis.DRIVER), n, p=sepsis.DRIVER)
        return driver, rng.random(n), sepsis.SPREAD * rng.uniform(-1.0, 1.0, (n, len(sepsis.MEASURES)))

    def next_states(
        self,
        site: int,
        step: int,  # noqa: ARG002 - the same at every step
        states: Array,
        codes: Codes,
        luck: tuple[Codes, Array, Array],
    ) -> Array:
        """x' (n, q)."""
        return sepsis.next_states(self.hospitals[site], sepsis.to_unit(states), codes, *luck)

    def expected_reward(self, site: int, states: Array, codes: NDArray[Any], step: int) -> Array:
        """The chance of r = 1, (n,)."""
        return sepsis.reward_chances(self.hospitals[site], sepsis.to_unit(states), codes, step)

    def draw_rewards(self, means: Array, rng: np.random.Generator) -> Array:
        """1 with the chance `means`, else 0."""
        return (rng.random(means.shape) < means).astype(np.float64)


def hospital_world() -> HospitalWorld:
    """The demo's hospitals.

    >>> hospital_world().sites
    ('Ashford', 'Birchwood', 'Calder', 'Dunmore', 'Elmstead')
    """
    hospitals = sepsis.hospitals()
    return HospitalWorld(
        sites=tuple(hospital.name for hospital in hospitals),
        covariates=tuple(measure.name for measure in sepsis.MEASURES),
        horizon=sepsis.HORIZON,
        n_actions=3,
        hospitals=hospitals,
    )
