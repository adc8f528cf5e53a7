"""Sums as whole numbers modulo 2⁶⁴, so that masks cancel bit for bit.

With at most N = K·`max_patients` patients and H steps, S, s, s_r, g and n are counted in units of 2⁻ᵇ and W, v, u in
units of 2⁻⁽ᵇ⁻¹⁰⁾,

    b = 62 − ⌈log₂(N·H)⌉,

because unit-scaled features and σ̂² ≥ 0.001 bound, for the n patients of a site at step h = 0, 1, …,

    |S_ij|, |s_r|, g ≤ n,    |s_i| ≤ n(H − h),    |W_ij|, |v_i|, u ≤ 1000·n:

no total exceeds 2⁶² as a signed number. A larger number would wrap around unnoticed, so every site checks these bounds
before it encodes, and everybody who decodes checks those of the total.
"""

import math
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from fdtr.errors import OtherStudy, OutOfRange
from fdtr.sums import INFORMATION_COARSENESS, VARIANCE_FLOOR, Sums

Array = NDArray[np.float64]
Words = NDArray[np.uint64]

FEWEST_BITS = 32
"""Fewer bits than this change results: with λ = 1e-5 it moves θ by up to 4e-8 of its size at 38 bits, 4e-6 at 32."""

PROMISED_BITS = 38
"""At this resolution and finer ones θ moves by less than 1e-7 of its size at λ ≥ 1e-5, collinear features included."""

_USED_BITS = 62
_ROUNDING = 1e-9
_INFORMATION = ("information", "information_moment", "information_square")


@dataclass(frozen=True)
class FixedPoint:
    """The fixed-point code of a study's sums; all sites of a round use the same.

    `horizon` is H, `n_shared` d0, `n_sites` K (the whole roster, dropped sites included), `max_patients` the study's
    limit for each site.

    The order of the numbers: step by step; within a step as `Sums` lists them (S, s, s_r, W, v, u, g, n), of a
    symmetric matrix the upper triangle, row by row.
    """

    horizon: int
    n_shared: int
    n_sites: int
    max_patients: int

    def __post_init__(self) -> None:
        if self.bits < FEWEST_BITS:
            raise OutOfRange(
                f"{self.n_sites} sites of up to {self.max_patients} patients over {self.horizon} steps leave "
                f"{self.bits} binary digits behind the point; a secure sum needs {FEWEST_BITS}. Lower `max_patients` "
                "under [disclosure] in the study file to what the largest site has."
            )

    @property
    def bits(self) -> int:
        """b, binary digits after the point."""
        return _USED_BITS - math.ceil(math.log2(self.n_sites * self.max_patients * self.horizon))

    @property
    def resolution(self) -> float:
        """2⁻ᵇ, the unit of S, s, s_r, g and n."""
        return math.ldexp(1.0, -self.bits)

    @property
    def caution(self) -> str:
        """A warning if rounding at this resolution may be visible in policies; else empty."""
        if self.bits >= PROMISED_BITS:
            return ""
        return (
            f"{self.n_sites} sites of up to {self.max_patients} patients over {self.horizon} steps leave {self.bits} "
            f"binary digits behind the point, and {PROMISED_BITS} are needed for policies that agree with those of an "
            "open round to 1e-7; with collinear shared features they may differ by a few 1e-6. Lower `max_patients` "
            "under [disclosure] to what the largest site has."
        )

    @property
    def length(self) -> int:
        """How many numbers a message holds: H·(d0(d0 + 1) + 3·d0 + 3)."""
        return self.horizon * sum(self._widths.values())

    def encode(self, sums: Sums) -> Words:
        """The sums of one site as whole numbers, (length,); refuses sums that might wrap around."""
        if (sums.horizon, sums.n_shared) != (self.horizon, self.n_shared):
            raise OtherStudy(
                f"The sums have {sums.horizon} steps and {sums.n_shared} shared features, the round {self.horizon} "
                f"and {self.n_shared}. Use the study file of the round."
            )
        if np.max(sums.n, initial=0.0) > self.max_patients:
            raise OutOfRange(
                f"The site has more patients than the study's `max_patients`, {self.max_patients}. Nothing was "
                "masked. Ask for a study file with a higher `max_patients`; all sites then start again with it."
            )
        self._require_range(sums, n_sites=1)
        numbers = np.column_stack([sums.packed()[name] for name in self._widths])
        return np.rint(numbers / self._units).astype(np.int64).ravel().view(np.uint64)

    def decode(self, total: Words, n_sites: int) -> Sums:
        """The sums of a total over `n_sites` sites; refuses numbers that so many sites cannot have."""
        if total.dtype != np.uint64 or total.shape != (self.length,):
            raise OtherStudy(f"A total of this round holds {self.length} whole numbers of 64 bits; this one does not.")
        numbers = total.view(np.int64).reshape(self.horizon, -1).astype(np.float64) * self._units
        parts = np.split(numbers, np.cumsum(list(self._widths.values()))[:-1], axis=1)
        by_name = dict(zip(self._widths, parts, strict=True))
        flat = {"information_square", "rank", "n"}
        sums = Sums.unpacked({name: part[:, 0] if name in flat else part for name, part in by_name.items()})
        self._require_range(sums, n_sites)
        return sums

    def quantised(self, sums: Sums) -> Sums:
        """A site's sums as rounded in the total: what the site has to subtract from it."""
        return self.decode(self.encode(sums), n_sites=1)

    @property
    def _widths(self) -> dict[str, int]:
        triangle = self.n_shared * (self.n_shared + 1) // 2
        wide = dict.fromkeys(("schur", "information"), triangle)
        wide |= dict.fromkeys(("schur_moment", "schur_reward", "information_moment"), self.n_shared)
        return {field.name: wide.get(field.name, 1) for field in fields(Sums)}

    @property
    def _units(self) -> Array:
        """The unit of each number of a step."""
        coarse = INFORMATION_COARSENESS * self.resolution
        units = [coarse if name in _INFORMATION else self.resolution for name in self._widths]
        return np.repeat(units, list(self._widths.values()))

    def _require_range(self, sums: Sums, n_sites: int) -> None:
        n = sums.n
        steps_left = self.horizon - np.arange(self.horizon)
        limits = {
            "schur": n,
            "schur_moment": n * steps_left,
            "schur_reward": n,
            **dict.fromkeys(_INFORMATION, n / VARIANCE_FLOOR),
            "rank": np.minimum(n, n_sites * self.n_shared),
            "n": np.full(self.horizon, float(n_sites * self.max_patients)),
        }
        for name, array in sums.packed().items():
            coarse = INFORMATION_COARSENESS if name in _INFORMATION else 1.0
            slack = _ROUNDING * limits[name] + n_sites * coarse * self.resolution
            largest = np.abs(array).reshape(self.horizon, -1).max(axis=1, initial=0.0)
            negative = name in ("information_square", "rank", "n") and (array < -slack).any()
            broken = name in ("rank", "n") and (array != np.rint(array)).any()
            # `not (… <= …)` instead of `>`: NaN must be refused too.
            if negative or broken or not (largest <= limits[name] + slack).all():
                raise OutOfRange(_explain(name, n_sites))


def _explain(name: str, n_sites: int) -> str:
    what = name.replace("_", " ")
    if n_sites == 1:
        return (
            f"The site's {what} is larger than its patients allow, and might wrap around in the sum. Nothing was "
            'masked. A secure sum needs scale = "unit" under [features]; if the study has it, report this as a fault.'
        )
    return (
        f"The {what} of the total is not one that {n_sites} sites can have: a message, a mask or an opening is wrong. "
        "Do not use this total. Start a new round."
    )
