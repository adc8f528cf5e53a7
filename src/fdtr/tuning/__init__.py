"""Settings from a site's own folds: how far to share (`ladder`) and how much pessimism (`usual_care`).

The paper's setting, w = 1 and values shared, stands unless held-out patients do better with less. Pessimism is larger
where patients fared better with usual care.

`fdtr.site.score_together` makes the scores of a site's own folds. These are made up, for two rungs on three folds; the
second is better on average, but by less than the folds differ:

>>> import numpy as np
>>> from fdtr.tuning import Candidate, Scores, choose
>>> candidates = (Candidate(0.01, 1.0, "value"), Candidate(0.01, 0.0, "value"))
>>> scores = Scores(candidates, error=np.array([[5.0, 5.1, 5.2], [5.1, 5.0, 5.15]]), contrast=np.zeros((2, 3)))
>>> choose(scores).candidate
Candidate(ridge=0.01, sharing=1.0, share='value')
"""

from fdtr.tuning.ladder import Candidate, Choice, Rung, Scores, candidates_of, choose
from fdtr.tuning.usual_care import OwnPenalty, UsualCare

__all__ = ["Candidate", "Choice", "OwnPenalty", "Rung", "Scores", "UsualCare", "candidates_of", "choose"]
