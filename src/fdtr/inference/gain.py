"""What a site gains from the others: how precise each shared effect is alone and together."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fdtr.inference.effects import infer_effects
from fdtr.summary import Sums

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Gain:
    """Each shared coefficient at one site, (H, d0) each.

    `alone` and `together` are its standard errors from the site's own sums and from the total. `worth` is how many
    patients of its own the site would need to know the coefficient as precisely alone: n·(alone/together)², never
    fewer than it has. It is infinite where the site cannot tell the coefficient from its own effects with any number
    of them, and NaN where all sites together cannot either.
    """

    alone: Array
    together: Array
    worth: Array


def gain_from_sharing(own: Sums, total: Sums) -> Gain:
    """What the total knows beside what one of its sites knows; `own` went into `total`."""
    alone, together = (infer_effects(sums).standard_errors for sums in (own, total))
    ratio = np.where(np.isnan(alone), np.inf, alone) / together
    patients = np.where(own.n > 0, own.n, np.nan)  # none where the site withheld a step, or nobody was left
    return Gain(alone, together, patients[:, None] * ratio**2)
