"""Totals of a secure sum as files, and what a site keeps to subtract from them."""

import math
import stat

import numpy as np
import pytest

from fdtr.errors import ChangedSummary, DamagedFile, ForeignFile, InvalidSums, OtherStudy
from fdtr.exchange.site_state.sent_copies import find_copy, find_kept, keep, keep_rounded, read_own
from fdtr.exchange.wire import encode_total, read_message, read_total, total_size, write_total
from fdtr.masking import FixedPoint, as_sent
from fdtr.site.fitting import fit_federated
from fdtr.site.site_message import summarize
from fdtr.summary import Total, combine
from message_files import forged
from random_tables import make_sites, make_study

pytestmark = pytest.mark.quick
SECURE = {"secure_sum": True, "max_patients": 1000}
DIGESTS = {name: f"{k:064x}" for k, name in enumerate("abc", 1)}


@pytest.fixture(scope="module")
def study():
    return make_study(disclosure=SECURE)


@pytest.fixture(scope="module")
def sites(study):
    return make_sites(study, {"a": 200, "b": 250, "c": 220}, duplicate=("u", "v"))


@pytest.fixture(scope="module")
def messages(study, sites):
    return {name: summarize(study, rows) for name, rows in sites.items()}


@pytest.fixture(scope="module")
def scale(study):
    return FixedPoint(study.horizon, study.feature_map.n_shared, 3, 1000)


@pytest.fixture(scope="module")
def sent(messages, scale):
    return {name: as_sent(message.summary, scale, DIGESTS[name]) for name, message in messages.items()}


@pytest.fixture(scope="module")
def total(study, sent, scale):
    plain = combine(sent.values())
    return Total(study.fingerprint, plain.members, plain.sums, scale.resolution)


def test_the_resolution_comes_back_and_the_length_stays(study, total, tmp_path):
    write_total(total, tmp_path / "total.fdtr")
    assert (tmp_path / "total.fdtr").stat().st_size == total_size(study, 3)
    assert read_total(tmp_path / "total.fdtr", study) == total
    fine = Total(total.fingerprint, total.members, total.sums, 2.0**-60)
    assert len(encode_total(fine)) == total_size(study, 3)


@pytest.mark.parametrize("resolution", [0.0, -(2.0**-40), 3 * 2.0**-40, 1.0, 2.0**-31, "fine", None, True])
def test_a_resolution_that_none_has_is_refused(study, total, tmp_path, resolution):
    path = tmp_path / "total.fdtr"
    path.write_bytes(forged(encode_total(total), resolution=resolution))
    with pytest.raises(DamagedFile, match="to what unit"):
        read_total(path, study)


def test_rounding_excuses_as_much_as_rounding_does(study, total, tmp_path):
    """An eigenvalue may be below zero by 1e-8·max(1, λ_max) + K·d0·resolution, and no further."""
    coarse = Total(total.fingerprint, total.members, total.sums, 2.0**-32)
    room = 3 * total.sums.n_shared * 2.0**-32
    sums = {name: 0 * array for name, array in total.sums.packed().items()}
    path = tmp_path / "total.fdtr"
    for below, allowed in ((0.9, True), (1.5, False)):
        lowered = {**sums, "schur": sums["schur"].copy()}
        lowered["schur"][0, 0] = -below * (room + 1e-8)
        path.write_bytes(forged(encode_total(coarse), lowered))
        if allowed:
            read_total(path, study)
        else:
            with pytest.raises(InvalidSums, match="negative eigenvalue"):
                read_total(path, study)
    assert math.isclose(room, 18 * 2.0**-32)


def test_a_total_is_made_as_the_study_asks(study, total, messages, tmp_path):
    write_total(combine(m.summary for m in messages.values()), tmp_path / "plain.fdtr")
    with pytest.raises(OtherStudy, match="by no secure sum, and the study asks for one"):
        read_total(tmp_path / "plain.fdtr", study)
    write_total(total, tmp_path / "masked.fdtr")
    with pytest.raises(OtherStudy, match="by a secure sum, and the study asks for none"):
        read_total(tmp_path / "masked.fdtr", make_study())


def test_a_site_keeps_both_and_finds_the_one_that_the_total_names(
    study, sites, messages, sent, total, tmp_path, monkeypatch
):
    monkeypatch.setenv("FDTR_STATE", str(tmp_path / "state"))
    write_total(total, tmp_path / "total.fdtr")
    answer = read_total(tmp_path / "total.fdtr", study)
    assert find_kept(answer, "b", study) is None
    released, rounded = keep(messages["b"]), keep_rounded(sent["b"])
    assert released == find_copy(messages["b"].summary.digest)
    assert stat.S_IMODE(rounded.stat().st_mode) == 0o600
    own = find_kept(answer, "b", study)
    assert own == sent["b"] == read_own(rounded, study)
    assert read_own(released, study) == messages["b"].summary
    assert (answer - own).sites == ("a", "c")
    plain = combine(m.summary for m in messages.values())
    with_sum = fit_federated(study, sites["b"], answer, own).theta
    np.testing.assert_allclose(
        with_sum, fit_federated(study, sites["b"], plain, messages["b"].summary).theta, rtol=1e-7, atol=1e-9
    )
    with pytest.raises(ChangedSummary, match="not the one that went into the total"):
        answer - messages["b"].summary
    with pytest.raises(ForeignFile, match="holds a rounded, not a message"):
        read_message(rounded, study)


def test_a_copy_under_another_name_is_not_subtracted(study, sent, total, tmp_path, monkeypatch):
    monkeypatch.setenv("FDTR_STATE", str(tmp_path / "state"))
    path = keep_rounded(sent["a"])
    path.rename(path.with_name(f"{DIGESTS['b']}.fdtr"))
    with pytest.raises(DamagedFile, match="another message than its name says"):
        find_kept(total, "b", study)


def test_only_what_went_into_a_secure_sum_is_kept_rounded(messages):
    with pytest.raises(ValueError, match="went into a secure sum"):
        keep_rounded(messages["a"].summary)
