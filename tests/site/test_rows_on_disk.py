"""Every role takes a partition in place of a table, and does the same with it, to the last bit."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import fdtr
from fdtr.exchange.release import AGREED_BEFOREHAND, release_message
from fdtr.exchange.site_state.ledger import Ledger, site_ledger
from fdtr.site import evaluate_site, partition_table, summarize
from fdtr.site.site_check import check, check_sites, check_total
from fdtr.site.site_message import is_made_from
from fdtr.trajectories import partition
from fdtr.trajectories.partition import RowsOnDisk
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


@pytest.mark.parametrize("clustered", [False, True])
def test_no_role_reads_all_ids_at_once_or_hashes_them_twice(tmp_path, monkeypatch, clustered):
    """Checking, tuning, fitting, and a release from judging to recording."""
    monkeypatch.setenv("FDTR_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(RowsOnDisk, "_labels", None)
    study = make_study(learning={"pessimism": "auto"}, columns={"cluster": "family"} if clustered else {})
    table = make_table(study, {"a": 300})
    families = [f"f{int(patient[1:]) // 2}" for patient in table["patient"].to_pylist()]
    rows = partition_table(study, table.append_column("family", pa.array(families)), tmp_path / "made")
    reads, id_batches = [], RowsOnDisk.id_batches
    monkeypatch.setattr(RowsOnDisk, "id_batches", lambda self: reads.append(1) or id_batches(self))
    released = release_message(study, rows, tmp_path / "a.fdtr", confirm=AGREED_BEFOREHAND)
    assert released.summary.digest == site_ledger().recorded()[0].message
    assert is_made_from(study, rows, released.summary, site_ledger())
    check(study, rows, ledger=site_ledger())
    total = fdtr.combine([released.summary])
    fdtr.fit_federated(study, rows, total, released.summary)
    check_total(study, rows, total, released.summary)
    assert len(reads) == 2  # for the seed, to see whether a rule refuses before a secret is made, and for the secret
