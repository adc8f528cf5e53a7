"""A simulated study on disk: what is written, and what is refused."""

import pytest

from fdtr.errors import FdtrError
from fdtr.pipeline.simulate import simulate
from fdtr.simulation import WorldSpec, make_hospital_world
from fdtr.site.rows import read_trajectories
from fdtr.study import Study


@pytest.mark.parametrize(
    ("spec", "n_sites"), [(WorldSpec(n_sites=2, horizon=3), 2), (make_hospital_world(), 5), (None, 5)]
)
def test_the_written_table_is_read_by_the_written_study(tmp_path, spec, n_sites):
    study = simulate(spec, tmp_path / "world", seed=1, patients=None if spec is None else 20)
    written = Study.load(tmp_path / "world" / "study.toml")
    rows = read_trajectories(tmp_path / "world" / "table.csv", written)
    assert written.fingerprint == study.fingerprint
    assert len(rows.sites) == n_sites
    assert rows.n_patients == (1340 if spec is None else 20 * n_sites)


def test_the_numbers_of_patients_of_the_demo_are_fixed(tmp_path):
    with pytest.raises(FdtrError, match="leave out --patients"):
        simulate(None, tmp_path / "world", patients=20)
    assert not (tmp_path / "world").exists()


def test_only_a_world_can_be_simulated(tmp_path):
    with pytest.raises(TypeError, match="A WorldSpec, DiscreteSpec, simulated world or None is needed, not str"):
        simulate("linear", tmp_path / "world")


def test_another_seed_gives_other_patients(tmp_path):
    tables = []
    for name, seed in (("one", 1), ("again", 1), ("other", 2)):
        simulate(WorldSpec(n_sites=1, horizon=2), tmp_path / name, seed=seed, patients=10)
        tables.append((tmp_path / name / "table.csv").read_bytes())
    assert tables[0] == tables[1] != tables[2]
