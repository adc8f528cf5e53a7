"""Differential privacy (experimental), where a study asks for it: the noise of its messages, and what it costs."""

from fdtr.disclosure.noise import Cost, expected_ratio, gaussian_noise, noise_scale
from fdtr.errors import NotNoised
from fdtr.learners.backward import Fit
from fdtr.learners.private_fit import Noise
from fdtr.study import Study


def noise_of(study: Study) -> Noise:
    """Noise for each step of one message of a study with epsilon and delta."""
    return gaussian_noise(*_budget(study), study.horizon)


def cost_of(study: Study, fit: Fit, n_sites: int | None = None) -> Cost | None:
    """What the noise costs at `n_sites` like this one, `min_sites` where not told; None where the study adds none.

    `fit` is the site's exact local fit.
    """
    if study.disclosure.epsilon is None:
        return None
    epsilon, delta = _budget(study)
    scale, n_sites = noise_scale(epsilon, delta, study.horizon), n_sites or study.disclosure.min_sites
    ratio = expected_ratio(fit, study.feature_map.n_shared, scale, n_sites)
    return Cost(epsilon, delta, scale, n_sites, ratio)


def refuse_values(study: Study) -> None:
    """Refuse to tell values of policies, which carry no noise, where the study promises differential privacy."""
    if study.disclosure.epsilon is not None:
        raise NotNoised(
            "The study asks for differential privacy (epsilon), and values of policies would leave this site without "
            "noise. Nothing was written. Without --out they are shown here alone."
        )


def _budget(study: Study) -> tuple[float, float]:
    asked = study.disclosure
    if asked.epsilon is None or asked.delta is None:
        raise ValueError("The study asks for no differential privacy.")
    return asked.epsilon, asked.delta
