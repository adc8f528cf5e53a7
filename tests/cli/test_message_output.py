"""What `fdtr hub combine` says of a site that contradicts the others."""

import json

import numpy as np
import pytest

from fdtr.cli import message_output
from fdtr.inference.message_checks import Suspicion
from fdtr.site.fitting import fit_local
from fdtr.summary import combine
from random_tables import make_sites, make_study

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("machine", [False, True])
def test_a_doubtful_site_is_named_beside_the_total_and_stays_in_it(machine, capsys, tmp_path):
    study = make_study()
    total = combine(fit_local(study, rows).summary for rows in make_sites(study, {"a": 60, "b": 60, "c": 60}).values())
    doubts = (Suspicion("b", "values-contradict", 0.0004),)
    message_output.show_total(study, total, np.zeros((3, 6)), doubts, tmp_path / "total.fdtr", machine)
    told = capsys.readouterr()
    if machine:
        found = json.loads(told.out)
        assert found["sites"] == ["a", "b", "c"]
        assert found["suspicions"] == [{"site": "b", "name": "values-contradict", "p_value": 0.0004}]
        assert told.err == ""
    else:
        assert "Added the sums of 3 sites" in told.out
        assert "Note: Site 'b' contradicts the others in what the shared features do to values (p = 0.0004)" in told.err
