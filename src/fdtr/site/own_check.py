"""Whether a total whose parts nobody has seen does harm on the site's own patients."""

import numpy as np

from fdtr import tuning
from fdtr.inference import OwnCheck, compare_held_out
from fdtr.site.fits import others_in
from fdtr.site.settings import message_settings
from fdtr.study import Study
from fdtr.summary import SiteSummary, Total
from fdtr.trajectories import Trajectories

_FOLDS = 10
_PURPOSE = b"own check"


def check_total(study: Study, rows: Trajectories, total: Total, own: SiteSummary) -> OwnCheck:
    """Held-out error with the others' sums beside that without them, over folds of the site's patients.

    Both are fitted with the λ of the message; the others count with the study's weight, fully where it says "auto".
    """
    learning, features = study.learning, study.feature_map
    grid = tuning.Grid(
        ridges=(message_settings(study).ridge,),
        weights=(0.0, 1.0 if learning.sharing == "auto" else learning.sharing),
        shares=("value" if learning.share == "auto" else learning.share,),
    )
    folds = tuning.assign_folds(rows.units.to_pylist(), learning.seed, _FOLDS, _PURPOSE)
    sums = tuning.sum_folds(rows, features, np.unique(folds, return_inverse=True)[1])
    scores = tuning.score(sums, others_in(total, own), features.n_shared, features.main_effects, grid)
    return compare_held_out(scores.error[0], scores.error[-1])
