"""The noise of differential privacy: what it spends, by OpenDP's own accounting, and how it is drawn."""

import subprocess
import sys

import numpy as np
import opendp.prelude as dp
import pytest

from fdtr.algebra.noised import SENSITIVITY
from fdtr.disclosure.noise import WIDENED, gaussian_noise, noise_scale

dp.enable_features("contrib")
SPACE = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.l2_distance(T=float)


@pytest.mark.parametrize("epsilon", [0.5, 3.0, 10.0])
@pytest.mark.parametrize("horizon", [1, 5])
def test_all_steps_together_spend_epsilon_under_adaptive_composition(epsilon, horizon):
    step = dp.m.make_gaussian(*SPACE, noise_scale(epsilon, 1e-6, horizon))
    spent = [step.map(WIDENED)] * horizon
    whole = dp.c.make_adaptive_composition(*SPACE, dp.zero_concentrated_divergence(), d_in=WIDENED, d_mids=spent)
    found = dp.c.make_zCDP_to_approxDP(whole).map(WIDENED).epsilon(1e-6)
    assert 0.999 * epsilon <= found <= epsilon


def test_more_privacy_and_more_steps_need_more_noise():
    assert noise_scale(1.0, 1e-6, 5) > noise_scale(3.0, 1e-6, 5) > noise_scale(3.0, 1e-5, 5)
    assert noise_scale(3.0, 1e-6, 20) == pytest.approx(2 * noise_scale(3.0, 1e-6, 5))
    assert noise_scale(10.0, 1e-6, 5) == pytest.approx(2.55, rel=0.01)  # σ = Δ √(H/2ρ), ρ = 1.54 by OpenDP
    assert SENSITIVITY < WIDENED < SENSITIVITY * 1.00001


def test_noise_is_drawn_anew_with_its_standard_deviation():
    noise = gaussian_noise(3.0, 1e-6, 5)
    draws = [noise.add(np.full(2_000, 7.0)) for _ in range(2)]
    assert not np.isin(draws[0], draws[1]).any()
    for draw in draws:
        assert draw.std() == pytest.approx(noise.scale, rel=0.1)
        assert draw.mean() == pytest.approx(7.0, abs=noise.scale / 8)


def test_the_extra_is_named_where_it_is_missing():
    program = (
        "import sys; sys.modules['opendp.prelude'] = sys.modules['opendp'] = None\n"
        "from fdtr.disclosure.noise import noise_scale\nfrom fdtr.errors import MissingExtra\n"
        "try:\n    noise_scale(1.0, 1e-6, 2)\nexcept MissingExtra as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert "pip install 'fdtr[privacy]'" in done.stdout
