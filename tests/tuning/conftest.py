"""A small study with early ends, and three sites of it."""

import pytest

from random_tables import make_sites, make_study


@pytest.fixture(scope="package")
def study():
    return make_study(ends={"death": 0.0, "discharge": 1.0})


@pytest.fixture(scope="package")
def sites(study):
    return make_sites(study, {"a": 120, "b": 90, "c": 70}, ragged=True)
