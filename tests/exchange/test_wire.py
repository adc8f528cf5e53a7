"""Messages as files, and the copies kept at home."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file

from fdtr import container
from fdtr.errors import DamagedFile, ForeignFile, OtherStudy, UnwritableFile, WrongSite
from fdtr.exchange.site_state import state_folder
from fdtr.exchange.site_state.sent_copies import find_kept, keep
from fdtr.exchange.wire import (
    inspect,
    message_size,
    payload_size,
    read_message,
    read_total,
    total_size,
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


def test_a_total_of_very_many_sites_is_read(study, messages, tmp_path):
    """Its header is longer than any other's: 20,000 sites have 5 MB."""
    total = combine(m.summary for m in messages.values())
    members = tuple((f"device,[{{{k:06}", f"{k:064x}") for k in range(20_000))
    many = Total(total.fingerprint, members, total.sums)
    write_total(many, tmp_path / "many.fdtr")
    assert read_total(tmp_path / "many.fdtr", study) == many
    assert inspect(tmp_path / "many.fdtr", None, None).body.members == members
    assert repr(many).startswith("<Total of 'device,[{000000', ")
    assert " and 19,988 more: 670 patients" in repr(many)


@pytest.mark.parametrize("filling", [b'"a":0,', b"[[],[]],", b"0,", b'[\\"a\\",0],', b'"', b"\\", b"[", b"{"])
@pytest.mark.parametrize("inside", [False, True])
def test_a_long_header_that_would_take_much_memory_is_not_parsed(study, tmp_path, filling, inside):
    size = total_size(study, 20_000)
    header = b'{"__metadata__":{"fdtr":"' + (b"" if inside else b'"},') + filling * (5 * 2**20 // len(filling))
    length = 2048 + 256 * 20_000 - 8
    content = (length.to_bytes(8, "little") + header)[: length + 8].ljust(size, b" ")
    (tmp_path / "total.fdtr").write_bytes(content)
    tracemalloc.start()
    for read in (lambda path: read_total(path, study), lambda path: inspect(path, None, None)):
        with pytest.raises((DamagedFile, ForeignFile)):
            read(tmp_path / "total.fdtr")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6 * size


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
