"""From covariates and an action to φ(x, a) = (φ0, φ1), with φ_l = p(a) ⊗ ψ_l(x).

The map is a state basis ψ(x) of m functions and, for each action, a constant matrix B_a (d, m) with
φ(x, a) = B_a ψ(x). The rest of the package uses only these two.

Order of φ: shared before site-specific; within each, by action term (1, a, a², …; or 1 and an indicator of each
level but the first); within a term the intercept, then covariates as the study lists them, then their functions.
Covariates that do not interact appear in the first term alone.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fdtr.algebra.namespaces import empty, like, namespace_of, write
from fdtr.features.bases import Basis, Linear, make_basis

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Block:
    """One covariate inside ψ, or the intercept, which has no basis.

    `column` is the covariate's position among the covariates (None for the intercept), `rows` its rows in ψ, `shared`
    whether its effect is shared, and `interacts` whether it has action terms.
    """

    basis: Basis | None
    column: int | None
    rows: slice
    shared: bool
    interacts: bool

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the functions."""
        return ("1",) if self.basis is None else self.basis.labels

    @property
    def bound(self) -> float:
        """Largest sum of squares of the functions."""
        return 1.0 if self.basis is None else self.basis.bound


@dataclass(frozen=True, eq=False)
class LinearRun:
    """Linear covariates that are adjacent in both the state and ψ, mapped in one operation: z = (x − shift)·factor."""

    columns: slice
    rows: slice
    shift: Array
    factor: Array


@dataclass(frozen=True, eq=False)
class FeatureMap:
    """φ of a study.

    `covariates` names the columns of a state, in order, with their public ranges `low` and `high`; `levels` (A,)
    are the action codes; `embeddings` (A, d, m) stacks B_a, the division by the largest norm included; `names` are
    the d features, `n_shared` = d0 of them shared.
    """

    covariates: tuple[str, ...]
    low: Array
    high: Array
    allowed: tuple[tuple[float, ...] | None, ...]
    levels: NDArray[Any]
    blocks: tuple[Block, ...]
    embeddings: Array
    names: tuple[str, ...]
    n_shared: int

    @property
    def n_features(self) -> int:
        """d = d0 + d1."""
        return len(self.names)

    @property
    def n_functions(self) -> int:
        """m, the length of ψ."""
        return int(self.embeddings.shape[2])

    @property
    def has_levels(self) -> bool:
        """Whether a covariate is categorical, so that only its levels are allowed."""
        return any(levels is not None for levels in self.allowed)

    @property
    def own_intercepts(self) -> list[int]:
        """Positions in φ of the site's own intercept and its action terms."""
        columns = [block.rows.start for block in self.blocks if block.basis is None and not block.shared]
        return [int(j) for j in np.flatnonzero(np.any(self.embeddings[:, :, columns] != 0, axis=(0, 2)))]

    @property
    def main_effects(self) -> NDArray[np.bool_]:
        """Which of the d features are the same whatever the action, (d,): the first action term."""
        main: NDArray[np.bool_] = np.all(self.embeddings == self.embeddings[:1], axis=(0, 2))
        return main

    @property
    def n_actions(self) -> int:
        """|A|."""
        return len(self.levels)

    def clip(self, states: Array) -> Array:
        """`states` (q, n) in raw units, moved into the public ranges."""
        return np.clip(states, self.low[:, None], self.high[:, None])

    def psi(self, states: Array, out: Array | None = None) -> Array:
        """ψ(x), (m, n), of `states` (q, n): a row for each covariate, in raw units inside the ranges.

        ψ is an array of the library that `states` is of. The result is written into `out` (m, n) if present.
        """
        if out is None:
            out = empty((self.n_functions, states.shape[1]), states)
        xp = namespace_of(states)
        for run in self._linear_runs:
            rows = out[run.rows, :]
            write(xp.subtract, states[run.columns, :], like(run.shift, states), out=rows)
            write(xp.multiply, rows, like(run.factor, states), out=rows)
        for block in self._single_blocks:
            if block.basis is None or block.column is None:
                out[block.rows, :] = 1.0
            else:
                block.basis.fill(states[block.column, :], out[block.rows, :])
        return out

    @cached_property
    def _single_blocks(self) -> tuple[Block, ...]:
        return tuple(block for block in self.blocks if not isinstance(block.basis, Linear))

    @cached_property
    def _linear_runs(self) -> tuple[LinearRun, ...]:
        """Most studies have one or two runs, so threads take the interpreter's lock twice, not once a covariate."""
        linear = [b for b in self.blocks if isinstance(b.basis, Linear)]
        groups: list[list[Block]] = []
        for block in linear:
            last = groups[-1][-1] if groups else None
            adjacent = last is not None and (last.column, last.rows.stop) == ((block.column or 0) - 1, block.rows.start)
            groups[-1].append(block) if adjacent else groups.append([block])
        return tuple(_linear_run(group) for group in groups)

    def phi(self, states: Array, actions: NDArray[np.intp]) -> Array:
        """φ(x, a), (n, d), for `states` (q, n) and positions of actions (n,). For few rows: φ is built in full."""
        phi: Array = np.einsum("ndm,mn->nd", self.embeddings[actions], self.psi(states))
        return phi

    def squared_norms(self, psi: Array, actions: NDArray[np.intp]) -> Array:
        """‖φ(x, a)‖² for each column of `psi` (m, n), without building φ."""
        weights = np.einsum("adm,adm->am", self.embeddings, self.embeddings)  # the columns of B_a are orthogonal
        norms: Array = np.einsum("nm,mn->n", weights[actions], psi * psi)
        return norms


def _linear_run(blocks: Sequence[Block]) -> LinearRun:
    first, last = blocks[0], blocks[-1]
    maps = np.array([b.basis.affine for b in blocks if isinstance(b.basis, Linear)])
    columns = slice(first.column, (last.column or 0) + 1)
    return LinearRun(columns, slice(first.rows.start, last.rows.stop), maps[:, :1], maps[:, 1:])


def build_features(
    actions: Mapping[str, Any], covariates: Sequence[Mapping[str, Any]], features: Mapping[str, Any]
) -> FeatureMap:
    """The feature map of the sections [actions], [[covariates]] and [features] of a study.

    All fields must be present; `Study` fills in the defaults.
    """
    unit = features["scale"] == "unit"
    blocks = _blocks(covariates, features["intercept"], unit)
    levels = np.asarray(actions["levels"])
    terms, term_names = _action_terms(actions)
    norm = _largest_norm(blocks, terms) if unit else 1.0
    shared, specific = [b for b in blocks if b.shared], [b for b in blocks if not b.shared]
    m = sum(b.rows.stop - b.rows.start for b in blocks)
    shared_rows, shared_names = _embed(shared, terms, term_names, m)
    specific_rows, specific_names = _embed(specific, terms, term_names, m)
    return FeatureMap(
        covariates=tuple(c["name"] for c in covariates),
        low=np.array([_range(c)[0] for c in covariates], dtype=np.float64),
        high=np.array([_range(c)[1] for c in covariates], dtype=np.float64),
        allowed=tuple(tuple(c["basis"]["levels"]) if c["basis"]["kind"] == "categorical" else None for c in covariates),
        levels=levels,
        blocks=blocks,
        embeddings=np.concatenate([shared_rows, specific_rows], axis=1) / norm,
        names=(*shared_names, *specific_names),
        n_shared=len(shared_names),
    )


def _range(covariate: Mapping[str, Any]) -> tuple[float, float]:
    """The public range; that of a categorical covariate runs from its smallest level to its largest."""
    basis = covariate["basis"]
    low, high = (min(basis["levels"]), max(basis["levels"])) if basis["kind"] == "categorical" else covariate["range"]
    return float(low), float(high)


def _blocks(covariates: Sequence[Mapping[str, Any]], intercept: str, unit: bool) -> tuple[Block, ...]:
    """ψ = (ψ0, ψ1): each with its intercept first, then the covariates as listed."""
    blocks: list[Block] = []
    start = 0
    for effect in ("shared", "specific"):
        shared = effect == "shared"
        if intercept == effect:
            blocks.append(Block(None, None, slice(start, start + 1), shared, True))
            start += 1
        for column, covariate in enumerate(covariates):
            if covariate["effect"] == effect:
                basis = make_basis(covariate["name"], *_range(covariate), unit, covariate["basis"])
                blocks.append(Block(basis, column, slice(start, start + basis.size), shared, covariate["interacts"]))
                start += basis.size
    return tuple(blocks)


def _action_terms(actions: Mapping[str, Any]) -> tuple[Array, tuple[str, ...]]:
    """p(a) for every level, (A, q), and the names of its q terms.

    >>> _action_terms({"levels": [0, 5, 10], "basis": "polynomial", "degree": 2, "scale": "unit"})[0]
    array([[1.  , 0.  , 0.  ],
           [1.  , 0.5 , 0.25],
           [1.  , 1.  , 1.  ]])
    """
    codes = np.asarray(actions["levels"], dtype=np.float64)
    if actions["basis"] == "categorical":
        indicators = (codes[:, None] == codes[None, 1:]).astype(np.float64)
        names = tuple(f"[a={level:g}]" for level in codes[1:])
        return np.column_stack([np.ones(len(codes)), indicators]), ("", *names)
    if actions["scale"] == "unit":
        codes = (codes - codes.min()) / (codes.max() - codes.min())
    degree = actions["degree"]
    names = ("", "a", *(f"a^{power}" for power in range(2, degree + 1)))[: degree + 1]
    return codes[:, None] ** np.arange(degree + 1), names


def _largest_norm(blocks: Sequence[Block], terms: Array) -> float:
    """Largest possible ‖φ‖: √(Σ_main M + max_a ‖p(a)‖² Σ_interacting M)."""
    main = sum(b.bound for b in blocks if not b.interacts)
    interacting = sum(b.bound for b in blocks if b.interacts)
    return math.sqrt(main + float(np.max(np.sum(terms**2, axis=1))) * interacting)


def _embed(blocks: Sequence[Block], terms: Array, term_names: tuple[str, ...], m: int) -> tuple[Array, tuple[str, ...]]:
    """The rows of B_a that belong to `blocks`, (A, rows, m), and the names of the features they make."""
    rows: list[Array] = []
    names: list[str] = []
    for term, term_name in enumerate(term_names):
        for block in blocks:
            if term > 0 and not block.interacts:
                continue
            for function, label in zip(range(block.rows.start, block.rows.stop), block.labels, strict=True):
                row = np.zeros((len(terms), m))
                row[:, function] = terms[:, term]
                rows.append(row)
                names.append(_product(term_name, label))
    if not rows:
        return np.zeros((len(terms), 0, m)), ()
    return np.stack(rows, axis=1), tuple(names)


def _product(term: str, label: str) -> str:
    """`a·sbp`; an intercept's main effect is `1`, its action term `a`."""
    if not term:
        return label
    return term if label == "1" else f"{term}·{label}"
