"""Intervals hold the truth about as often as they say, where the estimators' assumptions hold."""

import pytest

from experiments.coverage import Setting, measure_coverage


@pytest.mark.slow
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(("runs", "least"), [(60, 53), pytest.param(100, 90, marks=pytest.mark.long)])
def test_intervals_cover_in_many_runs(known, runs, least):
    # A true 95% is seen below 53 of 60 in 1.0% of such tests and below 90 of 100 in 1.1%, a true 93% in 6% and 9%; the
    # seed is fixed. In 2,000 runs coverage was 94.5% to 95.0%; 98.0% for pdis with estimated propensities, which varies
    # less than its interval says.
    rows = measure_coverage(Setting(known=known, fresh=400_000), runs=runs, processes=1)
    assert [row.method for row in rows] == ["pdis", "wis", "fqe", "dr", "wdr"]
    for row in rows:
        assert row.coverage.estimate >= least / runs, row
        assert row.believable >= 0.97  # weights average less than 1 by three standard errors once in a while
        assert abs(row.bias) <= max(3 * row.bias_error, 0.1 * row.deviation), row
        if known or row.method != "pdis":
            assert row.standard_error == pytest.approx(row.deviation, rel=0.25), row
        else:
            assert row.standard_error > row.deviation


@pytest.mark.quick
def test_the_experiment_runs_with_every_interval():
    for kind in ("influence", "bootstrap"):
        rows = measure_coverage(Setting(n=200, fresh=2000, n_train=100, interval=kind, draws=100), runs=2, processes=1)
        assert [row.method for row in rows] == ["pdis", "wis", "fqe", "dr", "wdr"]
    bound = Setting(n=200, fresh=2000, n_train=100, interval="bernstein", methods=("pdis",))
    assert measure_coverage(bound, runs=2, processes=1)[0].coverage.estimate == 1.0
