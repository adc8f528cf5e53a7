"""Fluids in sepsis: five fictional hospitals whose patients obey the paper's model (1) and (2) exactly.

Every four hours a patient gets no, a low or a high volume of fluid, and the reward says whether the patient was
better at the end of them: a value is the expected number of such windows, out of five. States are in clinical units;
z is a covariate mapped from its public range onto [0, 1]. With three doses p(a) = (1, a, a²) spans every function of
the dose, so whatever is linear in (1, z) under each dose is linear in φ = p(a) ⊗ (1, z).

Transitions (1). One of the site-specific covariates drives the next four hours: covariate j with the chance
DRIVER[j], upward with the chance z_j and else downward, to values uniform around a mean that depends on j, on the
direction, on the dose and on the hospital:

    P(x' | x, a) = Σ_j DRIVER[j] · [z_j ν(x'; j, up, a) + (1 − z_j) ν(x'; j, down, a)]

This is linear in φ1. Shared covariates have no part in it; they are drawn afresh at every step.

Rewards (2). r = 1 with a chance that is linear in φ, else 0. Shared covariates have one effect everywhere; the
intercept and the site-specific covariates have each hospital's own.

No number here comes from patients: directions follow clinical reasoning, sizes are made up.
"""

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdtr.simulation.worlds import Act, Array, Codes, FixedHorizonWorld, Trajectory

HORIZON = 5


@dataclass(frozen=True)
class Measure:
    """A covariate as it is recorded: its unit, its public range, and how many decimals it has."""

    name: str
    unit: str
    low: float
    high: float
    decimals: int


SPECIFIC = (Measure("sbp", "mmHg", 60, 180, 0), Measure("oxygen_need", "%", 21, 100, 0))
"""Systolic blood pressure and inspired oxygen: their effects are each hospital's own."""

SHARED = (
    Measure("heart_rate", "/min", 40, 160, 0),
    Measure("lactate", "mmol/L", 0.5, 8.5, 1),
    Measure("creatinine", "mg/dL", 0.3, 4.3, 1),
    Measure("temperature", "°C", 35, 41, 1),
    Measure("haemoglobin", "g/dL", 6, 16, 1),
)
"""Their effects are the same at every hospital."""

MEASURES = SPECIFIC + SHARED
"""The columns of a state, in the order of the study file; q of them."""

EXAMPLE_PATIENT = {
    "sbp": 104.0,
    "oxygen_need": 70.0,
    "heart_rate": 110.0,
    "lactate": 4.0,
    "creatinine": 2.2,
    "temperature": 38.4,
    "haemoglobin": 10.3,
}
"""Lactate asks for fluid, poor lungs and kidneys speak against it. On arrival the best dose is low at Ashford and
Dunmore, high at Birchwood and Elmstead, and none at Calder."""

# fmt: off
DRIVER = np.array([0.55, 0.45])
"""How often each site-specific covariate drives what comes next."""

#                 sbp   oxygen  pulse  lactate creat.  temp.  haemoglobin
PULL = np.array([
                [ 0.20, -0.04, -0.06,  -0.08,  -0.04,  0.00,  0.00],
                [-0.06,  0.20,  0.04,   0.04,   0.04,  0.04, -0.04],
])
"""(2, q): how the next z lie when a covariate drives upward; downward is the opposite."""

RESPONSE = np.array([
                [-0.04, -0.03,  0.02,   0.04,   0.02,  0.00,  0.01],
                [ 0.01,  0.01, -0.01,  -0.01,  -0.01,  0.00,  0.00],
                [ 0.04,  0.04, -0.02,  -0.03,   0.00,  0.00, -0.03],
])
"""(A, q): how none, low and high move the next z: fluid lifts the pressure, clears lactate, and wets the lungs."""

SPREAD = np.array([0.22, 0.22,  0.36,   0.34,   0.36,  0.38,  0.38])
"""(q,): half the width of each ν."""

#       pulse  lactate creat. temp.  haemoglobin
SHARED_EFFECTS = np.array([
    [
        [-0.06, -0.54,  0.14, -0.04, -0.06],
        [-0.04, -0.16, -0.12, -0.02,  0.02],
        [ 0.04,  0.16, -0.54,  0.02,  0.10],
    ],
    [
        [ 0.00, -0.40,  0.22,  0.02, -0.04],
        [-0.04, -0.16, -0.18, -0.02,  0.04],
        [-0.04,  0.06, -0.58, -0.04,  0.12],
    ],
])
"""(2, A, 5): what each shared covariate, from one end of its range to the other, adds to the chance of r = 1 under
none, low and high, at the first step and at the last; in between it changes evenly. Patients with much lactate need
fluid, above all early; failing kidneys cannot get rid of it."""

CUES = np.array([-1.5, -0.5, 0.3, 1.5, -0.3, 0.3, 0.0])
"""(q,): how strongly each z moves clinicians from less to more fluid."""
# fmt: on


@dataclass(frozen=True, eq=False)
class Hospital:
    """One hospital: its patients and its clinicians.

    `level` (q,) is where its patients' z tend to and `response` how strongly they respond to fluid. `chance` (2, A)
    is the chance of r = 1 of a mid-range patient under each dose, at the first step and at the last; `sbp` (A,) and
    `oxygen_need` (A,) are what these covariates add to it, from one end of their range to the other. `habit` (A,)
    is how much its clinicians like each dose, on the logit scale.
    """

    name: str
    n_patients: int
    level: tuple[float, ...]
    response: float
    chance: tuple[tuple[float, ...], tuple[float, ...]]
    sbp: tuple[float, ...]
    oxygen_need: tuple[float, ...]
    habit: tuple[float, ...]

    def means(self) -> Array:
        """Means of every ν, (2 drivers, 2 directions: down and up, A, q)."""
        signs = np.array([-1.0, 1.0])[:, None, None]
        means: Array = np.array(self.level) + signs * PULL[:, None, None, :] + self.response * RESPONSE
        return means

    def chances(self, step: int) -> tuple[Array, Array]:
        """Intercepts (A,) and slopes (A, q) of the chance of r = 1 in z − ½, the middle of every range."""
        late = step / (HORIZON - 1)
        first, last = np.array(self.chance)
        own = np.column_stack([self.sbp, self.oxygen_need])
        shared = (1 - late) * SHARED_EFFECTS[0] + late * SHARED_EFFECTS[1]
        return (1 - late) * first + late * last, np.hstack([own, shared])


def hospitals() -> tuple[Hospital, ...]:
    """The five hospitals, from the table at the end of this module."""
    return _HOSPITALS


def study_text() -> str:
    """The cohort's study file."""
    return files("fdtr.simulation").joinpath("sepsis.toml").read_text(encoding="utf-8")


def simulate_table(rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """The cohort as a long table: site, patient, step, action, reward and the covariates, a row for each step.

    Each hospital draws from a generator of its own, so that a change to one leaves the others' patients alone.
    """
    parts = [_table(hospital, own) for hospital, own in zip(hospitals(), rng.spawn(len(hospitals())), strict=True)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def rollout(hospital: Hospital, act: Act, n: int, rng: np.random.Generator) -> Array:
    """Sums of rewards, (n,), of `n` fresh patients of a hospital who are treated by `act`.

    All chance is drawn before the first decision: from equal generators two rules meet the same patients with the
    same luck, and their difference is paired.

    >>> ashford = hospitals()[0]
    >>> float(rollout(ashford, lambda states, step: np.ones(len(states)), 4, np.random.default_rng(0)).max()) <= 5
    True
    """
    return np.asarray(_walk(hospital, act, n, rng).rewards.sum(axis=0))


def clinicians(hospital: Hospital, rng: np.random.Generator) -> Act:
    """What the hospital's own clinicians do: a softmax on the patient's z and on habit. They draw from `rng`."""

    def act(states: Array, step: int) -> Codes:  # noqa: ARG001 - clinicians here do not look at the clock
        urge = (to_unit(states) - 0.5) @ CUES
        odds = np.exp(np.array(hospital.habit) + urge[:, None] * [-1.0, 0.0, 1.0])
        edges = np.cumsum(odds, axis=1)
        ticket = rng.random(len(states)) * edges[:, -1]
        return np.asarray(np.sum(ticket[:, None] >= edges[:, :-1], axis=1), dtype=np.intp)

    return act


def next_states(hospital: Hospital, z: Array, action: Codes, driver: Codes, direction: Array, around: Array) -> Array:
    """x' (n, q) in raw units, from who drives, uniform numbers for its direction (n,) and the draws around ν's mean."""
    up = (direction < z[np.arange(len(z)), driver]).astype(np.intp)
    return from_unit(hospital.means()[driver, up, action] + around)


def reward_chances(hospital: Hospital, z: Array, action: Codes, step: int) -> Array:
    """The chance of r = 1, (n,)."""
    centre, slopes = hospital.chances(step)
    chances: Array = centre[action] + np.einsum("nq,nq->n", slopes[action], z - 0.5)
    return chances


def to_unit(states: Array) -> Array:
    """z, (n, q), of `states` (n, q) in raw units."""
    z: Array = (states - _LOW) / _WIDTH
    return z


def from_unit(z: Array) -> Array:
    """`z` (n, q) in raw units, rounded as it is recorded."""
    states: Array = np.round((_LOW + _WIDTH * z) * _GRAIN) / _GRAIN
    return states


_LOW = np.array([measure.low for measure in MEASURES])
_WIDTH = np.array([measure.high - measure.low for measure in MEASURES])
_GRAIN = np.array([10.0**measure.decimals for measure in MEASURES])


@dataclass(frozen=True, eq=False)
class HospitalWorld(FixedHorizonWorld):
    """`hospitals` (K,) as `Hospital` describes them; their numbers of patients are not used."""

    hospitals: tuple[Hospital, ...]

    def study(self, **learning: float | str) -> dict[str, Any]:
        """The demo's study file; `learning` goes into its [learning]."""
        content = tomllib.loads(study_text())
        return {**content, "learning": {**content["learning"], **learning}}

    def behaviour(self, site: int, rng: np.random.Generator) -> Act:
        """What the hospital's clinicians do; they draw from `rng`."""
        return clinicians(self.hospitals[site], rng)

    def arrive(self, site: int, n: int, rng: np.random.Generator) -> Array:
        """x of `n` fresh patients, (n, q): as if they had been average and untreated until now."""
        hospital = self.hospitals[site]
        untreated = np.zeros(n, dtype=np.intp)
        return next_states(hospital, np.tile(hospital.level, (n, 1)), untreated, *self.luck(site, 0, n, rng))

    def luck(self, site: int, step: int, n: int, rng: np.random.Generator) -> tuple[Codes, Array, Array]:  # noqa: ARG002
        """Which covariate drives (n,), a number that gives its direction (n,), and draws around the mean (n, q)."""
        driver = rng.choice(len(DRIVER), n, p=DRIVER)
        return driver, rng.random(n), SPREAD * rng.uniform(-1.0, 1.0, (n, len(MEASURES)))

    def next_states(
        self,
        site: int,
        step: int,  # noqa: ARG002 - the same at every step
        states: Array,
        codes: Codes,
        luck: tuple[Codes, Array, Array],
    ) -> Array:
        """x' (n, q)."""
        return next_states(self.hospitals[site], to_unit(states), codes, *luck)

    def expected_reward(self, site: int, states: Array, codes: NDArray[Any], step: int) -> Array:
        """The chance of r = 1, (n,)."""
        return reward_chances(self.hospitals[site], to_unit(states), codes, step)

    def draw_rewards(self, means: Array, rng: np.random.Generator) -> Array:
        """1 with the chance `means`, else 0."""
        return (rng.random(means.shape) < means).astype(np.float64)


def make_hospital_world() -> HospitalWorld:
    """The five hospitals of the demo as a world: to sample, to value rules in, or as environments.

    >>> make_hospital_world().sites
    ('Ashford', 'Birchwood', 'Calder', 'Dunmore', 'Elmstead')
    """
    five = hospitals()
    return HospitalWorld(
        sites=tuple(hospital.name for hospital in five),
        covariates=tuple(measure.name for measure in MEASURES),
        horizon=HORIZON,
        n_actions=3,
        hospitals=five,
    )


def _walk(hospital: Hospital, act: Act, n: int, rng: np.random.Generator) -> Trajectory:
    q = len(MEASURES)
    driver = np.searchsorted(np.cumsum(DRIVER)[:-1], rng.random((HORIZON, n)), side="right")
    direction = rng.random((HORIZON, n))
    around = SPREAD * rng.uniform(-1.0, 1.0, (HORIZON, n, q))
    luck = rng.random((HORIZON, n))
    states = np.empty((HORIZON, n, q))
    actions = np.zeros((HORIZON, n), dtype=np.intp)
    expected = np.empty((HORIZON, n))
    # Patients arrive as if they had been average and untreated until now.
    z, action = np.tile(hospital.level, (n, 1)), np.zeros(n, dtype=np.intp)
    for h in range(HORIZON):
        # Rounding comes first: rewards and transitions are exact in what is recorded.
        states[h] = next_states(hospital, z, action, driver[h], direction[h], around[h])
        z = to_unit(states[h])
        actions[h] = action = np.asarray(act(states[h], h)).astype(np.intp)
        expected[h] = reward_chances(hospital, z, action, h)
    return Trajectory(states, actions, (luck < expected).astype(np.float64), expected)


def _table(hospital: Hospital, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    n = hospital.n_patients
    walk = _walk(hospital, clinicians(hospital, rng), n, rng)
    table = walk.table(hospital.name, [measure.name for measure in MEASURES])
    ids = np.array([f"{hospital.name[0]}-{number:04d}" for number in range(1, n + 1)])
    return table | {"patient": ids[table["patient"]], "reward": table["reward"].astype(np.int64)}


# fmt: off
_HOSPITALS = (
    # Damp lungs: much oxygen speaks strongly against fluid, yet its clinicians like to give it.
    Hospital("Ashford", 250, (0.48, 0.48, 0.50, 0.50, 0.47, 0.50, 0.48), response=0.8,
        chance=((0.51, 0.59, 0.45), (0.55, 0.57, 0.44)),
        sbp=(0.16, 0.04, -0.06), oxygen_need=(0.08, -0.08, -0.20), habit=(-0.7, 0.0, 0.5)),
    # Patients tolerate a high volume, which is given too rarely.
    Hospital("Birchwood", 300, (0.48, 0.48, 0.52, 0.49, 0.49, 0.48, 0.50), response=1.1,
        chance=((0.46, 0.45, 0.57), (0.46, 0.45, 0.57)),
        sbp=(0.12, 0.08, 0.00), oxygen_need=(-0.04, -0.10, -0.08), habit=(0.4, 0.3, -0.7)),
    # All or nothing; the habitual low volume rarely suits anyone.
    Hospital("Calder", 270, (0.48, 0.50, 0.52, 0.48, 0.49, 0.50, 0.46), response=1.0,
        chance=((0.59, 0.44, 0.46), (0.60, 0.44, 0.45)),
        sbp=(0.02, 0.06, 0.02), oxygen_need=(0.00, -0.08, -0.12), habit=(-0.4, 0.4, 0.2)),
    # A low volume is right for most and given to few.
    Hospital("Dunmore", 280, (0.48, 0.48, 0.50, 0.48, 0.47, 0.50, 0.50), response=1.0,
        chance=((0.47, 0.58, 0.47), (0.48, 0.57, 0.47)),
        sbp=(0.16, 0.06, -0.10), oxygen_need=(-0.02, -0.06, -0.12), habit=(0.3, -0.6, 0.3)),
    # High early, none late: here the time since arrival matters most.
    Hospital("Elmstead", 240, (0.48, 0.48, 0.50, 0.50, 0.49, 0.51, 0.48), response=0.9,
        chance=((0.47, 0.50, 0.57), (0.57, 0.52, 0.45)),
        sbp=(0.10, 0.08, 0.08), oxygen_need=(-0.10, -0.10, -0.04), habit=(0.0, 0.4, -0.5)),
)
# fmt: on
