"""Feed the frozen patients to SCOPE-RL and to fdtr, and say how far apart they are.

agree.py            compares SCOPE-RL's values now with the frozen ones and with fdtr's
agree.py --write    draws the patients anew from the seed and freezes them with SCOPE-RL's values, if fdtr's agree

Point estimates alone are compared. SCOPE-RL's Hoeffding interval multiplies by √n where it should divide, and its
bootstrap of self-normalised estimators keeps the normaliser of the first sample in every draw; fdtr's intervals are
to differ from those.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import scope_rl_patients
from scope_rl_patients import TOLERANCE, Array, Frozen

SEED = 20240607
N_PATIENTS, HORIZON, N_ACTIONS = 200, 4, 3
HEADER = (
    "patient,step,action,reward,b0,b1,b2,q0,q1,q2,"
    "stochastic0,stochastic1,stochastic2,deterministic0,deterministic1,deterministic2"
)

SCOPE_RL_CLASSES = {
    "pdis": "PerDecisionImportanceSampling",
    "wis": "SelfNormalizedPDIS",
    "dr": "DoublyRobust",
    # Normalises ρ_h and ρ_{h−1} within their own steps, V_0 by n: our WDR before its terms are gathered by weight.
    "wdr": "SelfNormalizedDR",
}


def draw_patients(rng: np.random.Generator) -> Frozen:
    """Three decimals everywhere, so that the file says exactly what was computed with."""
    shape = (N_PATIENTS, HORIZON, N_ACTIONS)
    left = np.arange(HORIZON, 0, -1)[:, None]
    q = np.round(rng.random(shape) * left, 3)
    behaviour = _chances(2 * q / left + rng.normal(0, 0.5, shape))
    stochastic = _chances(3 * q / left + rng.normal(0, 0.5, shape))
    actions = (rng.random(shape[:2])[..., None] > behaviour.cumsum(axis=2)[..., :-1]).sum(axis=2)
    taken = np.take_along_axis(q / left, actions[..., None], axis=2)[..., 0]
    rewards = np.round(np.clip(0.2 + 0.5 * taken + rng.normal(0, 0.2, shape[:2]), 0, 1), 3)
    return Frozen(
        actions=actions,
        rewards=rewards,
        behaviour=behaviour,
        q=q,
        targets={"stochastic": stochastic, "deterministic": np.eye(N_ACTIONS)[q.argmax(axis=2)]},
    )


def _chances(logits: Array) -> Array:
    """Softmax in thousandths; the last action has what the others leave."""
    odds = np.exp(logits)
    chances = np.round(odds / odds.sum(axis=2, keepdims=True), 3)
    chances[..., -1] = np.round(1 - chances[..., :-1].sum(axis=2), 3)
    return chances


def scope_rl_values(patients: Frozen) -> dict[str, dict[str, float]]:
    """What SCOPE-RL finds, by target and method. Its rows are steps, patient after patient."""
    if "d3rlpy" not in sys.modules and importlib.util.find_spec("d3rlpy") is None:
        _stand_in()
    from scope_rl.ope import discrete

    n_rows = patients.actions.size
    taken = np.take_along_axis(patients.behaviour, patients.actions[..., None], axis=2)
    logged = {
        "step_per_trajectory": patients.actions.shape[1],
        "action": patients.actions.reshape(n_rows),
        "reward": patients.rewards.reshape(n_rows),
        "pscore": taken.reshape(n_rows),
        "state_action_value_prediction": patients.q.reshape(n_rows, -1),
        "gamma": 1.0,
    }
    return {
        name: {
            method: float(
                getattr(discrete, estimator)().estimate_policy_value(
                    evaluation_policy_action_dist=chances.reshape(n_rows, -1), **logged
                )
            )
            for method, estimator in SCOPE_RL_CLASSES.items()
        }
        for name, chances in patients.targets.items()
    }


def _stand_in() -> None:
    """Let SCOPE-RL's estimators be imported without d3rlpy, torch and gym, whose names their annotations mention.

    `scope_rl.ope` itself would import everything; here it is a folder to find `discrete` in, which runs as published.
    Where all of SCOPE-RL is installed, it is imported whole; its values are the same to the last digit.
    """
    spec = importlib.util.find_spec("scope_rl")
    if spec is None or spec.origin is None:
        raise SystemExit("SCOPE-RL is not installed here. Run: make agree-scope-rl")
    _module("gym", Env=object)
    _module("d3rlpy", preprocessing=_module("d3rlpy.preprocessing", ActionScaler=object))
    _module("scope_rl.ope", __path__=[str(Path(spec.origin).parent / "ope")])


def _module(name: str, **names: Any) -> ModuleType:
    made = sys.modules[name] = ModuleType(name)
    vars(made).update(names)
    return made


def disagreements(theirs: dict[str, dict[str, float]], others: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    """Print every difference from SCOPE-RL; a sentence for each that is too large."""
    found = []
    print(f"{'target':14}{'method':8}{'SCOPE-RL':>16}" + "".join(f"{f'{who} −':>12}" for who in others))
    for target, values in theirs.items():
        for method, value in values.items():
            gaps = {who: other[target][method] - value for who, other in others.items()}
            print(f"{target:14}{method:8}{value:16.12f}" + "".join(f"{gap:12.1e}" for gap in gaps.values()))
            found += [
                f"{method} of the {target} target: {who} is {gap:+.1e} from SCOPE-RL, {TOLERANCE:.0e} is allowed."
                for who, gap in gaps.items()
                if not abs(gap) <= TOLERANCE
            ]
    return found


def freeze(patients: Frozen, theirs: dict[str, dict[str, float]]) -> None:
    n, horizon = patients.actions.shape
    places = np.stack(np.meshgrid(np.arange(1, n + 1), np.arange(1, horizon + 1), indexing="ij"), axis=2)
    observed = np.dstack([places, patients.actions, patients.rewards, patients.behaviour, patients.q])
    table = np.dstack([observed, *patients.targets.values()]).reshape(n * horizon, -1)
    np.savetxt(scope_rl_patients.PATIENTS, table, fmt="%.10g", delimiter=",", header=HEADER, comments="")
    made_with = {"scope-rl": version("scope-rl"), "numpy": np.__version__, "seed": SEED}
    scope_rl_patients.VALUES.write_text(json.dumps({"made_with": made_with, "values": theirs}, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare values with SCOPE-RL's.")
    parser.add_argument("--write", action="store_true", help="freeze patients and SCOPE-RL's values anew")
    write = parser.parse_args().write
    patients = draw_patients(np.random.default_rng(SEED)) if write else scope_rl_patients.read_patients()
    theirs = scope_rl_values(patients)
    others = {"fdtr": scope_rl_patients.fdtr_values(patients)}
    if not write:
        others["frozen"] = scope_rl_patients.read_values()["values"]
    print(f"SCOPE-RL {version('scope-rl')} on {len(patients.actions)} patients; other − SCOPE-RL:")
    found = disagreements(theirs, others)
    if found:
        raise SystemExit("\n".join([*found, "Nothing was written."] if write else found))
    if write:
        freeze(patients, theirs)
        print(f"Frozen in {scope_rl_patients.PATIENTS.parent}")
    print(f"They agree to {TOLERANCE:.0e}.")


if __name__ == "__main__":
    main()
