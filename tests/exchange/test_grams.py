"""Grams as messages, for audits: their files, and the policies that come of them."""

import contextlib
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdtr import container
from fdtr.errors import DamagedFile, FdtrError, InvalidSums
from fdtr.exchange import wire
from fdtr.exchange.site_state.sent_copies import find_kept, keep
from fdtr.exchange.wire import (
    encode_message,
    grams_layout,
    inspect,
    message_size,
    read_message,
    read_total,
    total_size,
    write_message,
    write_total,
)
from fdtr.hub import combine_messages
from fdtr.pipeline.run import run
from fdtr.site.fitting import fit_federated
from fdtr.site.rows import read_trajectories
from fdtr.site.site_message import summarize
from message_files import forged, open_bytes, small_messages, small_study
from random_tables import make_sites, make_study, make_table

pytestmark = pytest.mark.quick
SIZES = {"a": 330, "b": 360, "c": 400}


@pytest.fixture(scope="module")
def study():
    return make_study(disclosure={"payload": "gram"})


@pytest.fixture(scope="module")
def sites(study):
    return make_sites(study, SIZES)


@pytest.fixture(scope="module")
def messages(study, sites):
    return {name: summarize(study, rows) for name, rows in sites.items()}


def test_a_file_holds_the_grams_and_has_the_length_that_the_study_tells(study, messages, tmp_path):
    write_message(messages["a"], tmp_path / "a.fdtr")
    d = study.feature_map.n_features
    size = 2048 + 8 * 3 * (d * (d + 1) // 2 + 2 * d + 2)
    assert (tmp_path / "a.fdtr").stat().st_size == size == message_size(study)
    assert total_size(study, 3) == total_size(make_study(), 3)  # a total holds the same sums
    file = container.read(tmp_path / "a.fdtr", "message")
    assert set(file.arrays) == {"gram", "moment", "reward_moment", "reward_square", "n"}
    read = read_message(tmp_path / "a.fdtr", study)
    assert read == messages["a"].summary
    assert read.digest == messages["a"].summary.digest


def test_files_of_grams_give_the_policies_of_one_table(study, sites, messages, tmp_path, monkeypatch):
    monkeypatch.setenv("FDTR_STATE", str(tmp_path / "state"))
    for name, message in messages.items():
        keep(message)
        write_message(message, tmp_path / f"{name}.fdtr")
    total = combine_messages(study, [read_message(tmp_path / f"{name}.fdtr", study) for name in ("c", "a", "b")])
    write_total(total, tmp_path / "total.fdtr")
    answer = read_total(tmp_path / "total.fdtr", study)
    at_once = run(study, read_trajectories(make_table(study, SIZES), study)).federated
    for name, rows in sites.items():
        own = find_kept(answer, name, study)
        assert own.grams == messages[name].summary.grams
        for sent in (own, None):
            policy = fit_federated(study, rows, answer, sent).policy
            np.testing.assert_array_equal(policy.theta, at_once[name].policy.theta)
            np.testing.assert_array_equal(policy.precision, at_once[name].policy.precision)


def test_sums_and_grams_are_not_taken_for_each_other(study, messages):
    content = encode_message(messages["a"])
    sums = summarize(make_study(), make_sites(make_study(), {"a": 330})["a"])
    with pytest.raises(DamagedFile, match="a message of this study has"):
        open_bytes(encode_message(sums), study, None)
    with pytest.raises(DamagedFile, match="a message of this study has"):
        open_bytes(content, make_study(), None)


@pytest.mark.parametrize(
    ("name", "change", "error", "match"),
    [
        ("gram", lambda a: -a, InvalidSums, "negative eigenvalue"),
        ("gram", lambda a: 20 * a, InvalidSums, "ΦᵀΦ is larger"),
        ("gram", lambda a: a * np.nan, InvalidSums, "not finite"),
        ("moment", lambda a: 1e4 * a, InvalidSums, "ΦᵀY is larger"),
        ("reward_moment", lambda a: 1e4 * a, InvalidSums, "Φᵀr is larger"),
        ("reward_square", lambda a: a + 1e4, InvalidSums, "rᵀr is not one of"),
        ("n", lambda a: a.astype(np.uint64), DamagedFile, "numbers of another type"),
        ("n", lambda a: a + 0.5, InvalidSums, "not a whole number"),
    ],
)
def test_grams_that_no_patients_could_give_are_refused(study, messages, name, change, error, match):
    packed = messages["a"].summary.grams.packed()
    content = forged(encode_message(messages["a"]), {**packed, name: change(packed[name])})
    with pytest.raises(error, match=match):
        open_bytes(content, study, None)


def test_without_its_study_a_file_shows_its_grams_and_derives_nothing(messages, tmp_path):
    write_message(messages["a"], tmp_path / "a.fdtr")
    found = inspect(tmp_path / "a.fdtr", None, None).body
    assert found.grams == messages["a"].summary.grams
    assert found.digest == messages["a"].summary.digest
    assert found.sums.n_shared == 0
    assert found.sums.n.tolist() == [330, 330, 330]


SMALL = small_study(disclosure={"payload": "gram"})
NOISY = small_study(disclosure={"payload": "gram", "epsilon": 3.0, "delta": 1e-6})
CONTENT = encode_message(small_messages(SMALL)["a"])
SHAPES = grams_layout(SMALL.horizon, SMALL.feature_map.n_features)
LENGTH = sum(math.prod(shape) for shape in SHAPES.values())
NUMBERS = st.one_of(
    st.floats(width=64), st.floats(0, 1), st.sampled_from([0.0, 1.0, 400.0, 1e-300, 5e-324, 1e99, -1e-9, 1e-150])
)


@settings(max_examples=400)
@given(st.lists(NUMBERS, min_size=LENGTH, max_size=LENGTH), st.booleans())
def test_any_numbers_with_a_right_checksum_are_read_or_refused(numbers, diagonal):
    """Nothing else happens, in the checks or where sums are derived: no warning, no other error."""
    flat, arrays, start = np.array(numbers), {}, 0
    for name, shape in SHAPES.items():
        arrays[name] = flat[start : (start := start + math.prod(shape))].reshape(shape)
    if diagonal:  # else few would be sums of squares
        d = SMALL.feature_map.n_features
        arrays["gram"] = np.where(np.equal(*np.triu_indices(d)), np.abs(arrays["gram"]), 0.0)
        arrays["n"] = np.full(2, 400.0)
    content = forged(CONTENT, arrays)
    for study in (SMALL, NOISY, None):
        with contextlib.suppress(FdtrError):
            wire._message(container.decode(content, "message", "x"), "x", study, None)


def test_after_noise_and_without_a_study_numbers_need_only_be_sound(tmp_path):
    """One patient may change what noise must hide by as much as the bounds allow in all: they do not apply."""
    plain = make_study()
    rows = make_sites(plain, {"a": 300})["a"]
    packed = summarize(plain, rows).summary.sums.packed()
    noisy = make_study(disclosure={"epsilon": 3.0, "delta": 1e-6})
    content = encode_message(summarize(plain, rows))
    moved = {**packed, "schur_moment": packed["schur_moment"] * 1e4, "n": packed["n"] + 0.5}
    with pytest.raises(InvalidSums, match="a count is not a whole number"):
        open_bytes(forged(content, dict(moved)), plain, None)
    assert open_bytes(forged(content, dict(moved)), noisy, None).body.sums.n[0] == 300.5
    with pytest.raises(InvalidSums, match="negative eigenvalue"):
        open_bytes(forged(content, {**packed, "schur": -packed["schur"]}), noisy, None)
    (tmp_path / "noisy.fdtr").write_bytes(forged(content, dict(moved)))  # only the study would tell of noise
    assert inspect(tmp_path / "noisy.fdtr", None, None).body.sums.n[0] == 300.5
