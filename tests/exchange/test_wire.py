"""Messages as files, and the copies kept at home."""

from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file

from fdtr import container
from fdtr.errors import ForeignFile, OtherStudy, UnwritableFile, WrongSite
from fdtr.exchange.site_state import state_folder
from fdtr.exchange.site_state.sent_copies import find_kept, keep
from fdtr.exchange.wire import (
    message_size,
    payload_size,
    read_message,
    read_total,
    write_message,
    write_total,
)
from fdtr.hub import combine_messages, pooled_coefficients
from fdtr.site.fitting import fit_federated, fit_local
from fdtr.site.site_message import summarize
from fdtr.summary import Total, combine
from random_tables import make_sites, make_study
from refusals import refuses

pytestmark = pytest.mark.quick


@pytest.fixture(scope="module")
def study():
    return make_study()


@pytest.fixture(scope="module")
def sites(study):
    return make_sites(study, {"a": 200, "b": 250, "c": 220})


@pytest.fixture(scope="module")
def messages(study, sites):
    return {name: summarize(study, rows) for name, rows in sites.items()}


def test_files_give_bit_identical_policies(study, sites, messages, tmp_path):
    for name, message in messages.items():
        write_message(message, tmp_path / f"{name}.fdtr")
    total = combine_messages(study, [read_message(tmp_path / f"{name}.fdtr", study) for name in ("c", "a", "b")])
    write_total(total, tmp_path / "total.fdtr")
    own = messages["b"].summary
    through_files = fit_federated(study, sites["b"], read_total(tmp_path / "total.fdtr", study), own)
    in_memory = fit_federated(study, sites["b"], combine(m.summary for m in messages.values()), own)
    np.testing.assert_array_equal(through_files.theta, in_memory.theta)
    np.testing.assert_array_equal(through_files.policy.precision, in_memory.policy.precision)


def test_a_message_holds_no_more_than_its_sums(study, messages, tmp_path):
    write_message(messages["a"], tmp_path / "a.fdtr")
    file = container.read(tmp_path / "a.fdtr", "message")
    common = {"site", "fingerprint", "round", "context", "phase", "version", "kind", "format"}
    assert set(file.header) == common
    d0 = study.feature_map.n_shared
    payload = 3 * (d0 * (d0 + 1) + 3 * d0 + 3) * 8
    assert sum(array.nbytes for array in file.arrays.values()) == payload == payload_size(study)
    assert (tmp_path / "a.fdtr").stat().st_size == 2048 + payload == message_size(study)


def test_a_total_has_room_for_its_sites(study, messages, tmp_path):
    total = combine(m.summary for m in messages.values())
    write_total(total, tmp_path / "total.fdtr")
    assert (tmp_path / "total.fdtr").stat().st_size == 2048 + 3 * 256 + payload_size(study)
    assert read_total(tmp_path / "total.fdtr", study) == total
    names = {f"{k:03d}" + "ñ" * 30 for k in range(400)}  # 63 bytes each
    long = Total(total.fingerprint, tuple((name, "f" * 64) for name in sorted(names)), total.sums)
    write_total(long, tmp_path / "long.fdtr")
    assert read_total(tmp_path / "long.fdtr", study).sites == tuple(sorted(names))


def test_safetensors_reads_the_same(study, messages, tmp_path):
    write_message(messages["a"], tmp_path / "a.fdtr")
    arrays = load_file(tmp_path / "a.fdtr")
    for name, array in messages["a"].summary.sums.packed().items():
        assert arrays[name].tobytes() == array.tobytes()


def test_the_hub_refuses_strangers(study, messages):
    summaries = [m.summary for m in messages.values()]
    with pytest.raises(OtherStudy, match="belongs to another study"):
        combine_messages(make_study(name="other"), summaries)
    with pytest.raises(WrongSite, match="'a' is already in the total"):
        combine_messages(study, [*summaries, summaries[0]])
    twin = replace(summaries[0], site="d")
    with pytest.raises(WrongSite, match="under two names"):
        combine_messages(study, [*summaries, twin])
    with refuses("SITES", match="asks for 3"):
        combine_messages(study, summaries[:2])


def test_site_level_shared_covariates_ask_for_more_sites():
    covariates = [{"name": name, "effect": "shared", "level": "site"} for name in "uv"] + [{"name": "x"}]
    covariates.append({"name": "w", "level": "site"})  # specific: does not count
    study = make_study(covariates=covariates, disclosure={"min_patients": 1, "max_ratio": 1.0, "min_action": 1})
    rows = make_sites(study, dict.fromkeys("abcd", 120), constant_within_site=("u", "v", "w"))
    summaries = [summarize(study, part).summary for part in rows.values()]
    assert len(combine_messages(study, summaries).sites) == 4
    with refuses("SITES", match="asks for 4, because 2 shared covariates"):
        combine_messages(study, summaries[:3])


def test_totals_show_the_pooled_coefficients(study, messages):
    total = combine_messages(study, [m.summary for m in messages.values()])
    expected = [
        np.linalg.lstsq(s, m, rcond=1e-10)[0] for s, m in zip(total.sums.schur, total.sums.schur_moment, strict=True)
    ]
    np.testing.assert_allclose(pooled_coefficients(total), expected, rtol=1e-6)


def test_files_of_another_kind_are_refused(study, sites, messages, tmp_path):
    path = tmp_path / "x"
    write_message(messages["a"], path)
    with pytest.raises(ForeignFile, match="holds a message, not a total"):
        read_total(path, study)
    fit_local(study, sites["a"]).policy.save(path)
    with pytest.raises(ForeignFile, match="holds a policy, not a message"):
        read_message(path, study)


def test_the_copy_at_home_is_found_by_what_the_total_says(study, messages, tmp_path, monkeypatch):
    monkeypatch.setenv("FDTR_STATE", str(tmp_path / "state"))
    total = combine(m.summary for m in messages.values())
    assert find_kept(total, "a", study) is None
    kept = keep(messages["a"])
    assert kept.is_relative_to(tmp_path / "state")
    assert find_kept(total, "a", study).digest == messages["a"].summary.digest
    assert find_kept(total, "b", study) is None
    assert find_kept(total, "unknown", study) is None


def test_the_state_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.delenv("FDTR_STATE", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert state_folder() == tmp_path / "fdtr"


def test_a_state_folder_that_cannot_be_made_says_what_to_do(messages, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FDTR_STATE", str(tmp_path / "file"))
    with pytest.raises(UnwritableFile, match="Set FDTR_STATE"):
        keep(messages["a"])
