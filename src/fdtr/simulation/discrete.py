"""Worlds with a few levels of each covariate, exact values, and a Q that is not linear in any of the paper's features.

`ward`: heart rate, blood pressure, oxygen and lactate in two to five levels, a comorbidity, and three treatments that
are given or not: eight actions in no order. Each treatment helps against one fault and does some harm to another vital.
Patients with a high lactate get worse. What counts is health after the last step; health before it counts a tenth.
Clinicians do what is best for their patient, but pick one of the eight at random in 60% (the best site) to 90% of
decisions. With `habit` they treat the fault that they see, and give antibiotics for a fast heart instead of a high
lactate. Sites differ in skill, in their case mix and, with `deviation`, in how often each change of a vital happens.

`crossed`: two scores in nine levels, 0 of which is healthy, and four doses. A dose lowers scores where exactly one of
them is high and raises them elsewhere, which linear features do not see; beside that it does the more good the higher
the first score is, which they do.

Both may have more that a study does not want to meet: `confounding` is a hidden cause that makes patients worse while
clinicians treat them more; with `ends`, patients die or are discharged; `censoring` takes sick patients out of tables;
`unseen` covariates make what is seen non-Markov. Two leave little to learn: with `effect` 0 no treatment does
anything, and with a `skill` of few random decisions clinicians do what is best for almost everybody.
"""

from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fdtr.simulation.tabular import TabularWorld, best_actions
from fdtr.simulation.worlds import NO_DISCLOSURE_RULES, Array

VITALS = {"heart_rate": 3, "pressure": 3, "oxygen": 2, "lactate": 5, "comorbidity": 2}
"""Levels of each covariate of `ward`, from 0; heart rate and pressure are low, normal, high, oxygen low, normal."""

TREATMENTS = np.array(list(product((0, 1), repeat=3)))
"""Antibiotics, vasopressor and ventilation of each of the eight actions."""

RATES = {
    "infection spreads": 0.30,
    "infection spreads, treated": 0.10,
    "infection clears": 0.12,
    "infection clears, treated": 0.45,
    "ventilation infects": 0.04,
    "pressure falls": 0.10,
    "pressure falls, septic": 0.30,
    "pressure recovers": 0.15,
    "vasopressor raises": 0.70,
    "vasopressor overshoots": 0.06,
    "pressure settles": 0.30,
    "ventilation lowers pressure": 0.03,
    "heart races": 0.08,
    "heart races, septic": 0.25,
    "vasopressor races": 0.10,
    "antibiotics race": 0.25,
    "heart calms": 0.35,
    "oxygen falls": 0.08,
    "oxygen falls, septic": 0.15,
    "oxygen recovers": 0.12,
    "ventilation helps": 0.70,
}
"""Chances of a change within one step; a comorbidity or a hidden cause multiplies the odds of getting worse."""

FRAIL = 1.6
"""Odds ratio of getting worse with a comorbidity."""

SKILL = (0.9, 0.6)
"""Share of decisions at random, at the first and at the last site."""

CONTINUING = 0.1
"""Health before the last step, over health after it, as a reward."""

LEVELS = 9
"""Of each score of `crossed`."""


@dataclass(frozen=True)
class DiscreteSpec:
    """The specification of a discrete world; `make_discrete_world` draws what differs between its sites.

    `kind` is "ward" or "crossed". `deviation` is the standard deviation, between sites, of the log odds of each
    change. `confounding` is the log odds ratio by which a hidden cause makes patients worse and treatments more likely.
    With `ends`, death and discharge end a stay (ward only). `censoring` is the chance at each step that the sickest
    patients are lost; tables do not have them. With `habit`, clinicians treat what they see instead of what is best
    (ward only). `unseen` covariates are in no table; clinicians with a habit do not see them either. `effect` is the
    share of what treatments do elsewhere that they do here. `skill` is the share of decisions that are made at random,
    at the first and the last site.
    """

    kind: Literal["ward", "crossed"] = "ward"
    n_sites: int = 6
    horizon: int = 5
    deviation: float = 0.0
    confounding: float = 0.0
    ends: bool = False
    censoring: float = 0.0
    habit: bool = False
    unseen: tuple[str, ...] = ()
    effect: float = 1.0
    skill: tuple[float, float] = SKILL

    def __post_init__(self) -> None:
        if min(self.n_sites, self.horizon) < 1:
            raise ValueError("a world needs 1 site and 1 step at least")
        if not (0 <= self.deviation < np.inf and 0 <= self.confounding < np.inf):
            raise ValueError("deviation and confounding are numbers from 0 on")
        if not 0 <= self.censoring < 1:
            raise ValueError(f"censoring is {self.censoring:g}; it is a chance from 0 to below 1")
        if not all(0 <= share <= 1 for share in (self.effect, *self.skill)):
            raise ValueError(f"effect is {self.effect:g} and skill {self.skill}; they are shares from 0 to 1")
        if unknown := set(self.unseen) - (set(VITALS) if self.habit else set()):
            raise ValueError(f"{sorted(unknown)} cannot be unseen: a ward with habit has {', '.join(VITALS)}")
        if set(self.unseen) & {"heart_rate", "pressure", "oxygen"}:
            raise ValueError("clinicians with a habit see heart rate, pressure and oxygen, and so must the study")
        if (self.ends or self.habit) and self.kind != "ward":
            raise ValueError('only the kind "ward" has ends and habits')


def make_discrete_world(spec: DiscreteSpec, rng: np.random.Generator) -> TabularWorld:
    """Draw what is each site's own: rates, case mix and clinicians.

    >>> world = make_discrete_world(DiscreteSpec(n_sites=2), np.random.default_rng(0))
    >>> world.n_actions, world.states.shape
    (8, (180, 5))
    >>> from fdtr.simulation import constant_rule
    >>> constants = [world.value(0, constant_rule(code)).mean for code in range(world.n_actions)]
    >>> world.value(0, None).mean < max(constants) < world.optimal(0).value
    True
    """
    make = _Ward if spec.kind == "ward" else _Crossed
    causes = (0.0,) if not spec.confounding else (-spec.confounding / 2, spec.confounding / 2)
    parts = [make(spec, own) for own in rng.spawn(spec.n_sites)]
    states = parts[0].states
    transitions = np.stack([[np.stack([part.transitions(cause) for cause in causes])] for part in parts])
    if spec.effect < 1:
        untreated = transitions[:, :, :, np.argmin(parts[0].intensity)][:, :, :, None]
        transitions = (1 - spec.effect) * untreated + spec.effect * transitions
    hidden = np.full((spec.n_sites, len(causes), len(states)), 1 / len(causes))
    landing = parts[0].landing
    exits, worth = (("death", "discharge"), np.array([0.0, _STAY])) if spec.ends else ((), np.zeros(0))
    random_shares = np.linspace(*spec.skill, spec.n_sites)
    chances = []
    for rows, share in zip(transitions, random_shares, strict=True):
        if spec.habit:
            usual = np.broadcast_to(_habit(states), (spec.horizon, len(states)))
        else:
            usual = _best_practice(rows[0], hidden[0], landing, worth)
        chances.append(_clinicians(usual, share, causes, parts[0].intensity))
    return TabularWorld(
        sites=tuple(f"site-{k + 1:0{len(str(spec.n_sites))}d}" for k in range(spec.n_sites)),
        covariates=tuple(name for name in parts[0].covariates if name not in spec.unseen),
        horizon=spec.horizon,
        n_actions=len(parts[0].intensity),
        states=states,
        initial=np.stack([part.initial for part in parts]),
        hidden=hidden,
        chances=np.stack(chances),
        transitions=transitions,
        landing=landing,
        content=_content(spec, parts[0]),
        exits=exits,
        worth=worth,
        lost=np.where(parts[0].health < 0.25, spec.censoring, 0.0) if spec.censoring else None,
        seen=tuple(j for j, name in enumerate(parts[0].covariates) if name not in spec.unseen),
    )


_STAY = 0.28
"""What each step after a discharge counts: a fifth of the most that five steps in perfect health can bring."""


def _best_practice(rows: Array, hidden: Array, landing: Array, worth: Array) -> NDArray[np.intp]:
    """What is best for each step and state, (H, S)."""
    horizon, n_states = len(landing), rows.shape[2]

    def ahead(step: int, later: Array) -> Array:
        goal = landing[step] + np.concatenate([later, (horizon - 1 - step) * worth])
        return np.asarray(np.einsum("us,uas->as", hidden, rows @ goal))

    return best_actions(ahead, horizon, n_states)[0]


def _habit(states: Array) -> NDArray[np.intp]:
    """Antibiotics for a fast heart, a vasopressor for low pressure, ventilation for low oxygen, (S,)."""
    heart, pressure, oxygen, *_ = states.T
    wanted = np.column_stack([heart == 2, pressure == 0, oxygen == 0]).astype(np.intp)
    return np.asarray((wanted[:, None] == TREATMENTS).all(axis=2).argmax(axis=1))


def _clinicians(usual: NDArray[np.intp], share: float, causes: tuple[float, ...], intensity: Array) -> Array:
    """(H, U, S, A): the `usual` action (H, S) or, in a `share` of decisions, any.

    Where there is a hidden cause, that choice leans towards more treatment for patients whom it makes worse.
    """
    greedy = np.eye(len(intensity))[usual][:, None]  # (H, 1, S, A)
    lean = np.exp(np.outer(causes, intensity - intensity.mean()))
    lean /= lean.sum(axis=1, keepdims=True)
    return (1 - share) * greedy + share * lean[:, None, :]


class _Ward:
    """One site of `ward`."""

    covariates = tuple(VITALS)
    intensity = TREATMENTS.sum(axis=1).astype(np.float64)

    def __init__(self, spec: DiscreteSpec, rng: np.random.Generator) -> None:
        self.spec = spec
        self.states = np.array(list(product(*(range(levels) for levels in VITALS.values()))), dtype=np.float64)
        log_odds = {name: np.log(rate / (1 - rate)) for name, rate in RATES.items()}
        moved = spec.deviation * rng.standard_normal(len(RATES))
        self.rates = {
            name: 1 / (1 + np.exp(-odds - move)) for (name, odds), move in zip(log_odds.items(), moved, strict=True)
        }
        comorbidity, lactate = rng.uniform(0.15, 0.6), rng.dirichlet([2.0, 3.0, 5.0, 4.0, 2.0])
        laws = ([0.05, 0.45, 0.5], [0.4, 0.5, 0.1], [0.4, 0.6], lactate, [1 - comorbidity, comorbidity])
        self.initial = np.einsum("a,b,c,d,e->abcde", *map(np.asarray, laws)).ravel()
        self.health = _health(self.states)
        self.landing = _landing(self.health, spec)

    def transitions(self, cause: float) -> Array:
        """P(s' | s, a) of one hidden cause, (A, S, S + E)."""
        rows = np.stack([self._rows(treatment, cause) for treatment in TREATMENTS])
        if not self.spec.ends:
            return rows
        dies, leaves = self.health <= 0.05, self.health >= 0.99
        exits = np.stack([rows[..., dies].sum(axis=-1) * 0.5, rows[..., leaves].sum(axis=-1) * 0.5], axis=-1)
        return np.concatenate([np.where(dies | leaves, 0.5, 1.0) * rows, exits], axis=-1)

    def _rows(self, treatment: NDArray[np.intp], cause: float) -> Array:
        """P(s' | s, a) of one action, (S, S): each vital moves by itself, given all of them."""
        rate, (antibiotics, vasopressor, ventilation) = self.rates, treatment
        heart, pressure, oxygen, lactate, comorbidity = self.states.T.astype(np.intp)
        septic, none = lactate >= 3, np.zeros(len(self.states))
        frail = np.where(comorbidity == 1, FRAIL, 1.0) * np.exp(cause)

        def either(*chances: Any) -> Array:
            """The chance that at least one of independent events happens."""
            return np.asarray(1 - np.prod([1 - np.asarray(chance) + none for chance in chances], axis=0))

        def worse(name: str) -> Array:
            """The chance of a change for the worse, from its rate without and with sepsis."""
            usual = np.where(septic, rate.get(f"{name}, septic", rate[name]), rate[name])
            return np.asarray(usual * frail / (1 - usual + usual * frail))

        spreads = worse("infection spreads, treated" if antibiotics else "infection spreads")
        spreads = either(spreads, ventilation * (oxygen == 1) * rate["ventilation infects"])
        clears = rate["infection clears, treated" if antibiotics else "infection clears"] / frail * (1 - spreads)
        falls = either(
            (0.3 if vasopressor else 1.0) * worse("pressure falls"), ventilation * rate["ventilation lowers pressure"]
        )
        overshoots = vasopressor * rate["vasopressor overshoots"] * (1 - falls)
        rises = none + rate["vasopressor raises" if vasopressor else "pressure recovers"]
        settles = none + (0.2 if vasopressor else 1.0) * rate["pressure settles"]
        races = either(
            worse("heart races"), vasopressor * rate["vasopressor races"], antibiotics * rate["antibiotics race"]
        )
        calms = (0.5 if vasopressor else 1.0) * np.where(septic, 0.5, 1.0) * rate["heart calms"]
        tires = (0.4 if ventilation else 1.0) * worse("oxygen falls")
        breathes = none + rate["ventilation helps" if ventilation else "oxygen recovers"]
        laws = (
            _steps(
                heart, 3, up=np.choose(heart, [none + 0.4, races, none]), down=np.choose(heart, [none, none, calms])
            ),
            _steps(
                pressure,
                3,
                up=np.choose(pressure, [rises, overshoots, none]),
                down=np.choose(pressure, [none, falls, settles]),
            ),
            _steps(oxygen, 2, up=np.choose(oxygen, [breathes, none]), down=np.choose(oxygen, [none, tires])),
            _steps(lactate, 5, up=spreads, down=clears),
            np.eye(2)[comorbidity],
        )
        return np.asarray(np.einsum("sa,sb,sc,sd,se->sabcde", *laws).reshape(len(none), -1))

    @staticmethod
    def study_part() -> dict[str, Any]:
        """Covariates and actions of the study: every vital by its levels, all treatments as categories."""
        labels = [
            "+".join(n for n, on in zip(("abx", "vaso", "vent"), row, strict=True) if on) or "none"
            for row in TREATMENTS
        ]
        return {
            "actions": {"levels": list(range(len(TREATMENTS))), "labels": labels, "basis": "categorical"},
            "covariates": [
                {
                    "name": name,
                    "effect": "specific" if name == "comorbidity" else "shared",
                    "basis": {"kind": "categorical", "levels": list(range(levels))},
                }
                for name, levels in VITALS.items()
            ],
        }


class _Crossed:
    """One site of `crossed`."""

    covariates = ("first_score", "second_score")
    intensity = np.arange(4.0)

    def __init__(self, spec: DiscreteSpec, rng: np.random.Generator) -> None:
        self.spec = spec
        self.states = np.array(list(product(range(LEVELS), repeat=2))) / (LEVELS - 1)
        self.drift = 0.7 / (1 + np.exp(-spec.deviation * rng.standard_normal()))
        centre = rng.uniform(0.4, 0.8, size=2)
        weights = np.exp(-6 * ((self.states - centre) ** 2).sum(axis=1))
        self.initial = weights / weights.sum()
        self.health = 1 - self.states.mean(axis=1)
        self.landing = _landing(self.health, spec)

    def transitions(self, cause: float) -> Array:
        """P(s' | s, a) of one hidden cause, (A, S, S)."""
        high = self.states > 0.5
        crossed = np.where(high[:, 0] ^ high[:, 1], 1.0, -1.0)
        level = np.rint(self.states * (LEVELS - 1)).astype(np.intp)
        rows = []
        for dose in self.intensity / self.intensity.max():
            benefit = dose * (0.5 * crossed + 1.5 * (self.states[:, 0] - 0.5))
            better = np.clip(self.drift * (1 + benefit - 0.3 * cause), 0.02, 0.95)
            laws = [_steps(score, LEVELS, up=0.7 * (1 - better), down=better) for score in level.T]
            rows.append(np.einsum("sa,sb->sab", *laws).reshape(len(level), -1))
        return np.stack(rows)

    @staticmethod
    def study_part() -> dict[str, Any]:
        """Covariates and actions of the study: both scores and the dose as numbers, φ = (x, a·x)."""
        return {
            "actions": {"levels": [0, 1, 2, 3], "basis": "polynomial", "degree": 1},
            "covariates": [{"name": name, "effect": "shared", "range": [0.0, 1.0]} for name in _Crossed.covariates],
        }


def _steps(level: Any, n_levels: int, up: Array, down: Array) -> Array:
    """Chances (S, n_levels) of the next level, one up, one down or the same; at an end it stays."""
    index, scale = np.arange(len(level)), np.maximum(up + down, 1.0)
    law = np.zeros((len(level), n_levels))
    law[index, level] = 1 - (up + down) / scale
    np.add.at(law, (index, np.minimum(level + 1, n_levels - 1)), up / scale)
    np.add.at(law, (index, np.maximum(level - 1, 0)), down / scale)
    return law


def _health(states: Array) -> Array:
    heart, pressure, oxygen, lactate, _ = states.T
    faults = 1.0 * (heart != 1) + 1.5 * (pressure == 0) + 1.0 * (pressure == 2) + 1.5 * (oxygen == 0) + 0.6 * lactate
    return np.asarray(np.clip(1 - faults / 5, 0.0, 1.0))


def _landing(health: Array, spec: DiscreteSpec) -> Array:
    """The reward for each state reached, (H, S + E): its health, and a tenth of that before the last step."""
    health = np.append(health, [0.0, 1.0]) if spec.ends else health
    return np.stack([*[CONTINUING * health] * (spec.horizon - 1), health])


def _content(spec: DiscreteSpec, part: "_Ward | _Crossed") -> dict[str, Any]:
    content: dict[str, Any] = {
        "name": f"discrete-{spec.kind}",
        "horizon": spec.horizon,
        **part.study_part(),
        "features": {"intercept": "specific", "scale": "unit"},
        "reward": {"range": [0.0, 1.0]},
        "disclosure": NO_DISCLOSURE_RULES,
    }
    content["covariates"] = [column for column in content["covariates"] if column["name"] not in spec.unseen]
    return {**content, "ends": {"death": 0.0, "discharge": _STAY}} if spec.ends else content
