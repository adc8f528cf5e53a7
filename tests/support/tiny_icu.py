"""A hand-made MDP in the shape of ICU-Sepsis, small enough to enumerate; tests that share it need no download."""

import numpy as np

from experiments.icu_wheel import IcuArrays


def tiny_arrays(n_states: int = 4, n_vasopressors: int = 2, seed: int = 0) -> IcuArrays:
    """Every state leads to death and survival by every treatment; the expert never gives some doses in some states."""
    rng = np.random.default_rng(seed)
    shape = (n_states, 5, n_vasopressors)
    transitions = rng.dirichlet(np.full(n_states + 2, 0.7), shape)
    expert = rng.random(shape)
    expert[0, 3:] = 0.0
    expert[1, 2] = 0.0
    return IcuArrays(
        transitions=transitions,
        initial=rng.dirichlet(np.ones(n_states)),
        expert=expert / expert.sum(axis=(1, 2), keepdims=True),
        centres=rng.standard_normal((n_states, 47)),
        sofa=rng.uniform(0, 20, n_states),
    )
