"""Is a site better off with the others' sums or without them? Its own held-out patients say.

In a secure sum nobody can set one site's message against the others'. What is left to a site is to fit with the total
and without it on a part of its patients, and to compare both on the rest. That finds harm, not every wrong message:
with 5 sites of 1000 patients, of which one multiplied its moments, honest sites saw a factor of 10 or −10 always, −3 in
three of four cases, and 3 or a flipped sign hardly ever, because four right messages outweigh such a one. Cochran's Q
of the total (`heterogeneity`) tells of rewards that contradict each other, without naming a site.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

Array = NDArray[np.float64]

DOUBT = 0.01
"""Chance of doubting a total that does neither harm nor good."""


@dataclass(frozen=True)
class OwnCheck:
    """Held-out losses with the others less those alone: their mean `difference`, and the chance of one as large.

    "worse-than-alone": the total does harm here. A site's patients may differ from all others', or the total holds a
    wrong message; from one site alone nobody can tell which.
    """

    name: Literal["no-worse", "worse-than-alone"]
    difference: float
    standard_error: float
    p_value: float

    @property
    def sentence(self) -> str:
        """For the site's eyes."""
        if self.name == "no-worse":
            return "The others' sums do no harm on this site's own held-out patients."
        return (
            f"Fitted with the others, this site's own held-out patients are predicted worse than without them (p = "
            f"{self.p_value:.1g}). Its patients may differ from all others', or a message in the total may be wrong: "
            "compare with other sites before using this policy, or use the one fitted alone."
        )


def compare_held_out(alone: Array, together: Array, level: float = DOUBT) -> OwnCheck:
    """A one-sided paired t test of losses, where smaller is better.

    `alone` and `together` (m,) are the losses of the same held-out patients, or of the same folds of them.

    >>> compare_held_out(np.array([1.0, 2.0, 3.0, 4.0]), np.array([2.0, 3.1, 3.9, 5.0])).name
    'worse-than-alone'
    """
    differences = np.asarray(together) - np.asarray(alone)
    m, mean = len(differences), float(np.mean(differences)) if len(differences) else 0.0
    error = float(np.std(differences, ddof=1) / np.sqrt(m)) if m > 1 else float("nan")
    if m < 2 or error == 0.0:  # nothing to judge by, or no difference that varies
        return OwnCheck("no-worse", mean, error, 1.0)
    p_value = float(stdtr(m - 1, -mean / error))
    return OwnCheck("worse-than-alone" if p_value < level else "no-worse", mean, error, p_value)
