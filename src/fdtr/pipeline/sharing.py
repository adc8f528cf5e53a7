"""What the total of all messages says of the shared effects: sizes, errors, differences between sites, gains."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from fdtr.inference import gain_from_sharing, heterogeneity, infer_effects, raw_factors
from fdtr.report import record
from fdtr.site import LocalFit
from fdtr.study import Study
from fdtr.summary import Total


def shared_effects(study: Study, total: Total, names: Sequence[str]) -> list[record.Effect]:
    """θ⁰ of every step as an effect on the reward, with intervals, bands and p-values."""
    found = infer_effects(total.significant)
    alone, bands = found.intervals(), found.bands()
    raw = raw_factors(study.feature_map, *study.reward.range) if names else np.zeros(0)
    return [
        record.Effect(
            step=h,
            feature=name,
            identified=bool(found.identified[h, j]),
            estimate=found.estimates[h, j],
            standard_error=found.standard_errors[h, j],
            low=alone.low[h, j],
            high=alone.high[h, j],
            band_low=bands.low[h, j],
            band_high=bands.high[h, j],
            p_value=found.p_values[h, j],
            adjusted_p_value=found.adjusted_p_values[h, j],
            raw=raw[j],
        )
        for h in range(study.horizon)
        for j, name in enumerate(names)
    ]


def differences(total: Total) -> list[record.Difference]:
    """Cochran's Q of every step, and last of all steps together."""
    by_step = heterogeneity(total.significant)
    both = ((by_step, range(len(by_step.df))), (by_step.over_steps(), range(1)))
    return [
        record.Difference(
            step=h if found is by_step else None,
            statistic=found.statistic[h],
            df=int(found.df[h]),
            p_value=found.p_value[h],
            i_squared=found.i_squared[h],
        )
        for found, steps in both
        for h in steps
    ]


def gains(total: Total, local: Mapping[str, LocalFit], names: Sequence[str]) -> list[record.Gain]:
    """For every site and shared feature, what the others' sums add to its own; medians over steps."""
    rows = []
    for site, fit in local.items():
        found = gain_from_sharing(fit.summary.sums, total.significant)
        for j, name in enumerate(names):
            worth = _median(found.worth[:, j])
            rows.append(
                record.Gain(
                    site=site,
                    feature=name,
                    alone=_median(found.alone[:, j]),
                    together=_median(found.together[:, j]),
                    worth=worth if np.isfinite(worth) else np.nan,
                    only_together=bool(np.isposinf(worth)),
                )
            )
    return rows


def _median(by_step: NDArray[np.float64]) -> float:
    """Over the steps at which it is known; NaN where it never is."""
    known = by_step[~np.isnan(by_step)]
    return float(np.median(known)) if len(known) else np.nan
