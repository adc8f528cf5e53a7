"""Messages with the noise of differential privacy as files: read as they were made, written again, never made again."""

import numpy as np
import pytest

from fdtr.errors import BadSignature, DamagedFile, OtherRound, OtherStudy
from fdtr.exchange.site_state.sent_copies import find_kept, keep, write_again
from fdtr.exchange.wire import open_message, read_message, read_total, write_message, write_total
from fdtr.hub import combine_messages
from fdtr.masking import FixedPoint, as_sent
from fdtr.site.fitting import fit_federated, fit_message
from fdtr.site.site_message import summarize
from message_files import round_of, with_roster
from random_tables import make_sites, make_study

pytestmark = pytest.mark.quick
PRIVATE = {"epsilon": 100.0, "delta": 1e-6}
SIZES = {"a": 400, "b": 420, "c": 440}


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("FDTR_STATE", str(tmp_path / "state"))


@pytest.mark.parametrize("payload", ["schur", "gram"])
def test_a_study_learns_through_files_of_noised_messages(payload, tmp_path):
    study = make_study(disclosure=PRIVATE | {"payload": payload})
    sites = make_sites(study, SIZES)
    messages = {site: summarize(study, rows) for site, rows in sites.items()}
    for site, message in messages.items():
        keep(message)
        write_message(message, tmp_path / f"{site}.fdtr")
    read = [read_message(tmp_path / f"{site}.fdtr", study) for site in SIZES]
    assert read == [message.summary for message in messages.values()]
    assert all(summary.sums.schur.any() for summary in read)  # noise has not left nothing of them
    write_total(combine_messages(study, read), tmp_path / "total.fdtr")
    total = read_total(tmp_path / "total.fdtr", study)
    own = find_kept(total, "b", study)
    in_memory = fit_federated(study, sites["b"], total, messages["b"].summary)
    np.testing.assert_array_equal(fit_federated(study, sites["b"], total, own).theta, in_memory.theta)


@pytest.mark.parametrize("payload", ["schur", "gram"])
def test_a_kept_message_is_sealed_anew_for_the_round_that_is_asked(payload, tmp_path):
    study, keys = with_roster(make_study(disclosure=PRIVATE | {"payload": payload}), "a", "b", "c")
    message = summarize(study, make_sites(study, SIZES)["a"])
    first, second = round_of(study), round_of(study, 2)
    copy, out = keep(message, first, keys["a"]), tmp_path / "again.fdtr"
    before = copy.read_bytes()
    assert write_again(copy, out, study, second, keys["a"]) == message.summary
    letter = open_message(out, study, second)
    assert letter.verified
    assert letter.body.digest == message.summary.digest
    for name, sums in letter.body.payload.packed().items():
        np.testing.assert_array_equal(sums, message.summary.payload.packed()[name])
    with pytest.raises(OtherRound, match="is of round '2'; this is round '1'"):
        read_message(out, study, first)
    assert copy.read_bytes() == before
    write_again(copy, out, study, first, keys["a"])
    assert out.read_bytes() == before


def test_a_kept_message_is_not_sealed_for_others(tmp_path):
    study, keys = with_roster(make_study(disclosure=PRIVATE), "a", "b", "c")
    message, out = summarize(study, make_sites(study, SIZES)["a"]), tmp_path / "again.fdtr"
    copy = keep(message, round_of(study), keys["a"])
    with pytest.raises(BadSignature, match="not the one that the roster has of"):
        write_again(copy, out, study, round_of(study, 2), keys["b"])
    other = make_study(disclosure=PRIVATE | {"epsilon": 9.0})
    with pytest.raises(OtherStudy, match="belongs to another study"):
        write_again(copy, out, other, round_of(other))
    renamed = copy.rename(copy.with_name(f"{'0' * 64}.fdtr"))
    with pytest.raises(DamagedFile, match="another message than its name says"):
        write_again(renamed, out, study, round_of(study, 2), keys["a"])
    assert not out.exists()


def test_noised_sums_fit_into_a_secure_sum():
    study = make_study(disclosure=PRIVATE | {"secure_sum": True, "max_patients": 900})
    scale = FixedPoint(study.horizon, study.feature_map.n_shared, n_sites=3, max_patients=900)
    for rows in make_sites(study, SIZES).values():
        summary = fit_message(study, rows).summary
        sent = as_sent(summary, scale, "0" * 64)
        assert sent.noised
        assert sent.sums.close_to(summary.sums, 1e-6)
