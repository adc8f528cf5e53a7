"""Every file that is not a sound message is refused, each for its own reason."""

import io
import os
import pickle
import socket
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdtr import container
from fdtr.errors import (
    DamagedFile,
    FdtrError,
    ForeignFile,
    InvalidSums,
    OtherFormat,
    OtherRound,
    OtherStudy,
    UnreadableFile,
    WrongSite,
)
from fdtr.exchange import wire
from fdtr.exchange.wire import (
    encode_message,
    encode_total,
    message_size,
    open_message,
    read_message,
    read_total,
)
from fdtr.signing import Round
from fdtr.summary import combine
from fdtr.sums import Sums
from message_files import (
    by_hand,
    forged,
    header_text,
    open_bytes,
    refreshed,
    round_of,
    small_messages,
    small_study,
    with_roster,
)
from time_limit import within

pytestmark = pytest.mark.quick
STUDY = small_study()
MESSAGES = small_messages(STUDY)
SUMS = MESSAGES["a"].summary.sums
HERE = round_of(STUDY)
CONTENT = encode_message(MESSAGES["a"], HERE)
PAYLOAD = CONTENT[2048:]


def refuse(content: bytes, error: type[Exception], match: str, expected: Round | None = HERE) -> None:
    with pytest.raises(error, match=match) as refusal:
        open_bytes(content, STUDY, expected)
    assert type(refusal.value) is error


def test_the_message_itself_is_read():
    assert open_bytes(CONTENT, STUDY, HERE).body == MESSAGES["a"].summary
    assert len(CONTENT) == message_size(STUDY) == 2048 + 2 * (2 + 3 + 3) * 8


@pytest.mark.parametrize("signed", [False, True])
def test_every_flipped_bit_of_every_byte_is_refused(signed, tmp_path):
    study, keys = with_roster(STUDY, "a", "b") if signed else (STUDY, {})
    within = round_of(study)
    content = encode_message(MESSAGES["a"], within, keys.get("a"))
    assert open_bytes(content, study, within).verified is signed
    path = tmp_path / "a.fdtr"
    path.write_bytes(content)
    with path.open("r+b", buffering=0) as file:  # one file for all, in which one byte is changed and put back
        for place, byte in enumerate(content):
            for bit in range(8):
                os.pwrite(file.fileno(), bytes([byte ^ 1 << bit]), place)
                with pytest.raises(FdtrError):
                    open_message(path, study, within)
            os.pwrite(file.fileno(), bytes([byte]), place)
    assert open_message(path, study, within).verified is signed


def test_every_flipped_byte_of_a_total_is_refused():
    total = encode_total(combine(m.summary for m in MESSAGES.values()), HERE)
    for place in range(len(total)):
        changed = bytearray(total)
        changed[place] ^= 1
        with pytest.raises(FdtrError):
            wire._total(container.decode(bytes(changed), "total", "x"), "x", STUDY, HERE)


@pytest.mark.parametrize("length", [0, 1, 7, 8, 2047, 2048, len(CONTENT) - 1, len(CONTENT) + 1, 10 * len(CONTENT)])
def test_another_length_is_refused_unread(tmp_path, monkeypatch, length):
    path = tmp_path / "a.fdtr"
    path.write_bytes(CONTENT.ljust(length, b"\0")[:length])
    monkeypatch.setattr(container.encoding, "decode", None)
    with pytest.raises(DamagedFile, match=f"has {length:,} bytes; a message of this study has {len(CONTENT):,}"):
        read_message(path, STUDY, HERE)


def test_a_gigabyte_is_refused_without_reading_it(tmp_path):
    path = tmp_path / "a.fdtr"
    with path.open("wb") as file:
        file.write(CONTENT)
        file.truncate(2**30)
    for read in (read_message, read_total):
        with pytest.raises((DamagedFile, ForeignFile), match=r"1,073,741,824 bytes|holds a message, not a total"):
            read(path, STUDY, HERE)
    with pytest.raises(DamagedFile, match="1,073,741,824 bytes"):
        wire.inspect(path, None, None)
    assert container.is_container(path)  # a look at its beginning


def test_what_is_no_file_is_refused_and_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    cases = {
        "pipe": "is a pipe, not a file",
        "none": "does not exist",
        ".": "is a folder, not a file",
        "/dev/null": "is a device, not a file",
        "loop": "could not be read",
        "a\0b": "could not be read",
    }
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        for path, match in {**cases, "socket": "is a socket or a device, not a file"}.items():
            with within(10), pytest.raises(UnreadableFile, match=match):
                read_message(tmp_path / path, STUDY, HERE)
            assert not container.is_container(tmp_path / path)


def test_a_file_of_the_users_own_choosing_may_be_a_link(tmp_path):
    (tmp_path / "real").write_bytes(CONTENT)
    (tmp_path / "link").symlink_to("real")
    assert read_message(tmp_path / "link", STUDY, HERE).site == read_message(tmp_path / "real", STUDY, HERE).site


def test_a_file_that_is_exchanged_for_another_is_read_as_it_was_opened(tmp_path):
    path = tmp_path / "a.fdtr"
    path.write_bytes(CONTENT)
    with container.opened(path) as source:
        path.unlink()
        path.write_bytes(b"another")
        assert wire.open_message(source, STUDY, HERE).body.fingerprint == STUDY.fingerprint


@pytest.mark.parametrize("change", [CONTENT + b"more", CONTENT[:-1]], ids=["grows", "shrinks"])
def test_a_file_that_changes_its_length_while_it_is_read_is_refused(tmp_path, change):
    path = tmp_path / "a.fdtr"
    path.write_bytes(CONTENT)
    with container.opened(path) as source:
        path.write_bytes(change)  # the same file, written on
        with pytest.raises(DamagedFile, match="changed while it was read"):
            wire.open_message(source, STUDY, HERE)


def disguises():
    npz, archive = io.BytesIO(), io.BytesIO()
    np.savez(npz, **SUMS.packed())
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("x", CONTENT)
    npy = io.BytesIO()
    np.save(npy, SUMS.schur)
    pickles = {f"pickle {protocol}": pickle.dumps(SUMS.packed(), protocol) for protocol in (2, 3, 4, 5)}
    return {**pickles, "npz": npz.getvalue(), "zip": archive.getvalue(), "npy": npy.getvalue()}


@pytest.mark.parametrize(("name", "content"), disguises().items(), ids=disguises())
@pytest.mark.parametrize("fitted", [False, True], ids=["as is", "of the right length"])
def test_other_formats_in_disguise_are_named(tmp_path, name, content, fitted):
    path = tmp_path / "a.fdtr"
    path.write_bytes(content.ljust(len(CONTENT), b"\0")[: len(CONTENT)] if fitted else content)
    kind = {"pickle": "Python pickle", "npz": "zip or npz", "zip": "zip or npz", "npy": "NumPy array"}[name.split()[0]]
    with pytest.raises(ForeignFile, match=kind):
        read_message(path, STUDY, HERE)
    with pytest.raises(ForeignFile, match=kind):
        container.read(path, "message")


def test_old_pickles_are_refused_too():
    for protocol in (0, 1):
        content = pickle.dumps(SUMS.packed(), protocol)
        refuse(content.ljust(len(CONTENT), b"\0")[: len(CONTENT)], DamagedFile, "beginning is damaged")


class TestHeaders:
    TEXT = header_text(CONTENT)

    def test_refreshing_makes_a_message_that_is_read(self):
        assert refreshed(self.TEXT, PAYLOAD) == CONTENT

    def test_a_key_given_twice(self):
        refuse(
            refreshed(self.TEXT.replace('{\\"context', '{\\"site\\":\\"b\\",\\"context', 1), PAYLOAD),
            DamagedFile,
            "twice",
        )
        outer = self.TEXT.replace('"rank":{', '"n":{"dtype":"F64","shape":[2],"data_offsets":[0,16]},"rank":{', 1)
        refuse(refreshed(outer, PAYLOAD), DamagedFile, "says one thing twice")

    @pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "Infinity", "-Infinity"])
    def test_numbers_that_are_none(self, number):
        text = self.TEXT.replace('\\"format\\":4', f'\\"format\\":{number}', 1)
        refuse(refreshed(text, PAYLOAD), DamagedFile, "not finite")

    def test_another_format_version_by_name(self):
        text = self.TEXT.replace('\\"format\\":4', '\\"format\\":1', 1)
        refuse(refreshed(text, PAYLOAD), OtherFormat, "format 1; this version of fdtr reads format 4")

    @pytest.mark.parametrize("form", ["true", "1.0", "1e0", "null", "[1]"])
    def test_the_format_in_another_form(self, form):
        text = self.TEXT.replace('\\"format\\":4', f'\\"format\\":{form}', 1)
        with pytest.raises(
            (OtherFormat, DamagedFile), match=r"this version of fdtr reads format 4|a header that fdtr would not write"
        ):
            open_bytes(refreshed(text, PAYLOAD), STUDY, HERE)

    def test_white_space_another_order_and_more_metadata(self):
        for old, new, error, match in (
            ('\\"format\\":4,', '\\"format\\": 4,', DamagedFile, "fdtr would not write"),
            ('"dtype":"F64","shape"', '"dtype":"F64", "shape"', DamagedFile, "fdtr would not write"),
            ('"__metadata__":{', '"__metadata__":{"x":"y",', ForeignFile, "fdtr did not write"),
            ('"fdtr":', '"other":', ForeignFile, "fdtr did not write"),
            ('\\"kind\\":\\"message\\"', '\\"kind\\":\\"policy\\"', ForeignFile, "holds a policy, not a message"),
        ):
            refuse(refreshed(self.TEXT.replace(old, new, 1), PAYLOAD), error, match)

    def test_descriptions_that_do_not_fit(self):
        for old, new, match in (
            ('"F64"', '"F32"', "numbers of another type"),
            ('"F64"', '"U64"', "numbers of another type"),
            ('"F64"', "[]", "numbers of another type"),
            ("[0,16]", "[8,16]", "fdtr would not write"),
            ("[0,16]", "[0,17]", "fdtr would not write"),
            ('"shape":[2,1]', '"shape":[-2,-1]', "has no shape"),
            ('"shape":[2,1]', '"shape":[2.0,1]', "has no shape"),
            ('"shape":[2,1]', '"shape":[true,2]', "has no shape"),
            ('"shape":[2,1]', '"shape":[1,2]', "does not hold the arrays of a message"),
            ('"shape":[2,1]', f'"shape":[{10**30}]', "has no shape"),
            ('"shape":[2,1]', '"shape":[2,1,1,1,1]', "has no shape"),
        ):
            assert old in self.TEXT
            refuse(refreshed(self.TEXT.replace(old, new, 1), PAYLOAD), DamagedFile, match)

    def test_a_header_that_is_no_json(self):
        for text in ("", "[]", "{", "[" * 2000, "{}", '{"__metadata__":3}', "9" * 2000, "é"):
            with pytest.raises(
                (DamagedFile, ForeignFile), match=r"its header is truncated, damaged|fdtr did not write"
            ):
                open_bytes(by_hand(text, PAYLOAD), STUDY, HERE)
        refuse((2040).to_bytes(8, "little") + b"\xff" * 2040 + PAYLOAD, DamagedFile, "header is truncated, damaged")
        refuse((2**63).to_bytes(8, "little") + CONTENT[8:], DamagedFile, "beginning is damaged")
        refuse((2032).to_bytes(8, "little") + CONTENT[8:], DamagedFile, "has a header of 2,040 bytes")

    def test_nests_and_halves_of_characters(self):
        for old, new in (
            ('\\"site\\":\\"a\\"', '\\"site\\":' + "[" * 480 + "]" * 480),
            ('\\"site\\":\\"a\\"', '\\"site\\":\\"\\\\ud800\\"'),
            ('\\"site\\":\\"a\\"', f'\\"site\\":{2**60}'),
            ('"rank":{', '"\\ud800":{'),
        ):
            assert old in self.TEXT
            refuse(
                refreshed(self.TEXT.replace(old, new, 1), PAYLOAD),
                DamagedFile,
                "header that fdtr would not write|its header is truncated|lacks a field",
            )

    def test_a_changed_sum(self):
        refuse(CONTENT[:-8] + bytes(8), DamagedFile, "checksum differs")

    def test_fields_that_do_not_belong(self):
        refuse(forged(CONTENT, note="x"), DamagedFile, "lacks a field in its header, or has one")
        refuse(forged(CONTENT, site=3), DamagedFile, "lacks a field")
        refuse(forged(CONTENT, fingerprint="0" * 63), DamagedFile, "to which study")
        refuse(forged(CONTENT, version="1\n2"), DamagedFile, "which version")

    @pytest.mark.parametrize("name", ["x" * 65, "ñ" * 33, 'a"b', "a\\b", "a\nb", "a\x1b[2J", " a", "hub"])
    def test_names_that_cannot_travel(self, name):
        refuse(forged(CONTENT, site=name), WrongSite, "cannot stand in a message|may not be called")

    def test_strange_names_fit(self):
        assert open_bytes(forged(CONTENT, site="ñ" * 32), STUDY, HERE).body.site == "ñ" * 32


class TestRounds:
    def test_another_study(self):
        refuse(encode_message(small_messages(small_study(name="other"))["a"]), OtherStudy, "belongs to another study")

    def test_another_round_and_a_replay(self):
        later = encode_message(MESSAGES["a"], round_of(STUDY, 2))
        refuse(later, OtherRound, "is of round '2'; this is round '1'")
        refuse(CONTENT, OtherRound, "of round 1, which is over; this is round 2", round_of(STUDY, 2))
        assert open_bytes(later, STUDY, round_of(STUDY, 2)).body == MESSAGES["a"].summary


class TestNumbers:
    """Sums with a right checksum that no patients could give."""

    def changed(self, **arrays):
        return forged(CONTENT, {**SUMS.packed(), **arrays})

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_not_finite(self, value):
        for name, array in SUMS.packed().items():
            spoilt = array.copy()
            spoilt.flat[-1] = value
            refuse(self.changed(**{name: spoilt}), InvalidSums, "not finite")

    def test_other_arrays(self):
        packed = SUMS.packed()
        for arrays in (
            {**packed, "rows": np.zeros(3)},
            {name: array for name, array in packed.items() if name != "n"},
            {**packed, "rank": packed["rank"].astype(np.uint64)},
            {**packed, "schur": packed["schur"].T},
        ):
            content = forged(CONTENT, arrays)
            with pytest.raises(DamagedFile, match=r"does not hold the arrays|numbers of another type"):
                wire._message(container.decode(content, "message", "x"), "x", STUDY, HERE)

    def test_negative_eigenvalues(self):
        refuse(self.changed(schur=-SUMS.schur[:, 0]), InvalidSums, "step 0: schur has a negative eigenvalue")

    def test_too_large(self):
        packed = SUMS.packed()
        refuse(
            self.changed(schur=packed["schur"] * 1000), InvalidSums, "larger than 400 patients with features of norm 1"
        )
        refuse(self.changed(schur_moment=packed["schur_moment"] * 1e4), InvalidSums, "s is larger than 400 patients")
        refuse(self.changed(schur_reward=packed["schur_reward"] * 1e4), InvalidSums, "s_r is larger")
        refuse(self.changed(information=packed["schur"] * 2000), InvalidSums, "W is more than 1000 times S")
        refuse(self.changed(schur=packed["schur"] * 1e200), InvalidSums, "beyond any count")

    def test_contradictions(self):
        packed = SUMS.packed()
        for name, change, match in (
            ("information_moment", 2.0, "v is not that multiple"),
            ("information_square", 2.0, "u is not what W and v make it"),
            ("rank", 0.0, "g is not the number of directions"),
        ):
            refuse(self.changed(**{name: packed[name] * change}), InvalidSums, match)
        zero = np.zeros_like(packed["schur"])
        refuse(self.changed(schur=zero, information=zero), InvalidSums, "about which S knows nothing")
        refuse(self.changed(n=np.zeros(2)), InvalidSums, "sums over no patients")

    def test_counts(self):
        for n in ([-1.0, 400], [399.5, 400], [1e300, 400]):
            with pytest.raises(InvalidSums, match=r"a count is not a whole number|beyond any count of patients"):
                open_bytes(self.changed(n=np.array(n)), STUDY, HERE)

    def test_w_of_two_features_must_be_one_multiple(self):
        study = small_study(covariates=[{"name": "u", "effect": "shared"}, {"name": "x"}])
        message = small_messages(study)["a"]
        content, packed = encode_message(message), message.summary.sums.packed()
        packed["information"] = packed["information"].copy()
        packed["information"][0, 1] *= 1.001
        with pytest.raises(InvalidSums, match="W is no multiple of S"):
            open_bytes(forged(content, packed), study, None)

    def test_a_total_is_judged_less_strictly(self, tmp_path):
        total = combine(m.summary for m in MESSAGES.values())
        path = tmp_path / "total.fdtr"
        path.write_bytes(encode_total(total, HERE))
        assert read_total(path, STUDY, HERE) == total
        packed = {**total.sums.packed(), "schur": -total.sums.packed()["schur"]}
        path.write_bytes(forged(path.read_bytes(), packed))
        with pytest.raises(InvalidSums, match="the total cannot come from patients"):
            read_total(path, STUDY, HERE)

    @pytest.mark.parametrize(
        "members", [[], [["a", "0" * 64]] * 3, [["b", "0" * 64], ["a", "0" * 64], ["c", "0" * 64]], "abc", [[1, 2]], 3]
    )
    def test_members_are_each_named_once(self, tmp_path, members):
        path = tmp_path / "total.fdtr"
        path.write_bytes(forged(encode_total(combine(m.summary for m in MESSAGES.values()), HERE), members=members))
        with pytest.raises((DamagedFile, WrongSite), match=r"which sites|has room for"):
            read_total(path, STUDY, HERE)


def read(content: bytes) -> object:
    """Anything at all is read or refused; nothing else happens."""
    try:
        return open_bytes(content, STUDY, HERE)
    except FdtrError:
        return None


FUZZ = settings(max_examples=400)


@FUZZ
@given(st.binary(max_size=4096))
def test_any_bytes_are_refused(content):
    assert read(content) is None
    assert read(content.ljust(len(CONTENT), b"\0")[: len(CONTENT)]) is None


@FUZZ
@given(st.lists(st.tuples(st.integers(0, len(CONTENT) - 1), st.binary(min_size=1, max_size=9)), min_size=1, max_size=4))
def test_any_patch_is_refused(patches):
    content = bytearray(CONTENT)
    for place, patch in patches:
        content[place : place + len(patch)] = patch
    content = bytes(content[: len(CONTENT)])
    assert (read(content) is None) == (content != CONTENT)


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@FUZZ
@given(st.dictionaries(st.sampled_from(["site", "round", "phase", "version", "context", "fingerprint", "x"]), json))
def test_any_header_with_a_right_checksum_is_read_or_refused(header):
    try:
        content = forged(CONTENT, **header)
    except (ValueError, UnicodeError):  # nothing that a header could hold
        return
    read(content)


floats = st.floats(width=64) | st.sampled_from([0.0, -0.0, 1e-320, 5e-324, 1e-150, 1e99, -1e99, 1e308, 60.0, 2.0**53])


@settings(FUZZ, max_examples=600)
@given(st.lists(floats, min_size=16, max_size=16))
def test_any_numbers_with_a_right_checksum_are_read_or_refused(numbers):
    flat, start, arrays = np.array(numbers), 0, {}
    for name, array in SUMS.packed().items():
        arrays[name] = flat[start : start + array.size].reshape(array.shape)
        start += array.size
    read(forged(CONTENT, arrays))


def test_reading_keeps_no_hold_on_the_file(tmp_path):
    path = tmp_path / "a.fdtr"
    path.write_bytes(CONTENT)
    letter = open_message(path, STUDY, HERE)
    path.write_bytes(bytes(len(CONTENT)))
    assert letter.body.sums == SUMS
    assert isinstance(letter.body.sums, Sums)
    assert letter.body.sums.n.flags.writeable
