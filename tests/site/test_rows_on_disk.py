"""Every role takes a partition in place of a table, and does the same with it, to the last bit."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import fdtr
from fdtr.exchange.site_state.ledger import Ledger
from fdtr.site import evaluate_site, partition_table, summarize
from fdtr.site.site_check import check_sites
from fdtr.trajectories import partition
from random_tables import make_study, make_table

SPLINE = {"name": "x", "range": [0, 1], "basis": {"kind": "spline", "knots": [0.3, 0.6], "degree": 2}}
STUDIES = {
    "ragged": {"ends": {"death": 0.0, "discharge": 1.0}},
    "splines": {"covariates": [SPLINE, {"name": "y", "effect": "shared", "range": [0, 1]}]},
}


@pytest.fixture(params=list(STUDIES))
def both(request, tmp_path, monkeypatch):
    """A study, and its table of three sites in memory and on disk, with row groups shorter than a chunk."""
    monkeypatch.setattr(partition, "GROUP_ROWS", 128)
    monkeypatch.setattr("fdtr.trajectories.partition_writer.GROUP_ROWS", 128)
    tuned = {"ridge": "auto", "sharing": "auto", "share": "auto", "pessimism": "auto"}
    study = make_study(learning=tuned, **STUDIES[request.param])
    table = make_table(study, {"a": 300, "b": 260, "c": 280}, seed=5, ragged=bool(study.ends))
    ids = table["patient"].cast(pa.string())
    ordered = table.take(pa.array(np.argsort(np.array(ids.to_pylist()), kind="stable")))
    return study, fdtr.read_trajectories(ordered, study), partition_table(study, table, tmp_path / "made")


def test_messages_and_policies_are_the_same(both, tmp_path):
    study, table, disk = both
    fits = {}
    for rows in (table, disk):
        sites = rows.by_site()
        local = {name: fdtr.fit_local(study, of_site) for name, of_site in sites.items()}
        total = fdtr.combine(fit.summary for fit in local.values())
        message = summarize(study, sites["a"], Ledger(tmp_path / "ledger"))
        federated = fdtr.fit_federated(study, sites["a"], total, local["a"].summary)
        fits[rows is disk] = local, message.summary, federated, [*check_sites(study, sites)]
    (local, message, federated, checks), (local_disk, message_disk, federated_disk, checks_disk) = fits.values()
    for name, fit in local.items():
        assert np.array_equal(fit.theta, local_disk[name].theta)
        assert fit.chosen == local_disk[name].chosen
    assert message.digest == message_disk.digest
    assert np.array_equal(federated.theta, federated_disk.theta)
    assert federated.chosen == federated_disk.chosen
    assert [check.verdicts for check in checks] == [check.verdicts for check in checks_disk]


def test_values_are_the_same(both):
    study, table, disk = both
    values = []
    for rows in (table, disk):
        sites = rows.by_site()
        local = {name: fdtr.fit_local(study, of_site) for name, of_site in sites.items()}
        total = fdtr.combine(fit.summary for fit in local.values())
        evaluation = evaluate_site(study, sites["a"], total, local["a"].summary)
        values.append([evaluation.value(name, method).value for name in ("FDTR", "LDTR") for method in ("wdr", "fqe")])
    assert values[0] == values[1]
