"""Keys, fingerprints, rounds, and who is believed."""

import os
import stat

import pytest

from fdtr.container import UNSIGNED
from fdtr.errors import (
    BadSignature,
    Exposed,
    InvalidStudy,
    OtherRoster,
    OtherRound,
    OtherStudy,
    OutputExists,
    UnreadableFile,
    UnwritableFile,
)
from fdtr.exchange.wire import (
    encode_message,
    open_message,
    open_total,
    read_message,
    read_total,
    read_values,
    write_message,
    write_total,
    write_values,
)
from fdtr.signing import (
    Envelope,
    Key,
    Round,
    fingerprint_of,
    is_locked,
    numbered_round,
    public_bytes,
    roster_hash,
    verify,
)
from fdtr.study import Study, set_roster
from fdtr.summary import combine
from message_files import forged, round_of, small_messages, small_study, small_values, with_roster

pytestmark = pytest.mark.quick

# RFC 8032, section 7.1, TEST 1 to 3: secret key, public key, message, signature.
RFC_8032 = [
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"  # noqa: ISC004
        "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
    ),
    (
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"  # noqa: ISC004
        "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a",
    ),
]


@pytest.fixture(scope="module")
def study():
    return small_study()


@pytest.fixture(scope="module")
def messages(study):
    return small_messages(study)


@pytest.fixture(scope="module")
def keyed(study):
    return with_roster(study, "a", "b", "c", "hub")


@pytest.mark.parametrize(("secret", "public", "message", "signature"), RFC_8032)
def test_signatures_are_those_of_the_standard(secret, public, message, signature):
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Key(Ed25519PrivateKey.from_private_bytes(bytes.fromhex(secret)))
    assert public_bytes(key.public).hex() == public
    assert key.sign(bytes.fromhex(message)) == signature


def test_keys_come_back_from_their_file(tmp_path):
    key = Key.new()
    key.save(tmp_path / "plain.key")
    key.save(tmp_path / "locked.key", "correct horse")
    for name in ("plain.key", "locked.key"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    assert Key.load(tmp_path / "plain.key").public == key.public
    assert Key.load(tmp_path / "locked.key", "correct horse").public == key.public
    assert not is_locked(tmp_path / "plain.key")
    for wrong in (None, "battery staple"):
        with pytest.raises(UnreadableFile, match="the passphrase is another one"):
            Key.load(tmp_path / "locked.key", wrong)


def test_a_key_is_never_overwritten_or_half_written(tmp_path, monkeypatch):
    Key.new().save(tmp_path / "a.key")
    before = (tmp_path / "a.key").read_bytes()
    with pytest.raises(OutputExists, match="never overwritten"):
        Key.new().save(tmp_path / "a.key")
    assert (tmp_path / "a.key").read_bytes() == before
    with pytest.raises(UnwritableFile, match="could not be written"):
        Key.new().save(tmp_path / "no" / "a.key")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UnwritableFile, match="No space left"):
        Key.new().save(tmp_path / "b.key")
    assert [path.name for path in tmp_path.iterdir()] == ["a.key"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o777])
@pytest.mark.parametrize("passphrase", [None, "correct horse"])
def test_a_key_that_others_can_read_or_change_is_refused_before_a_passphrase_is_asked(tmp_path, mode, passphrase):
    path = tmp_path / "a.key"
    key = Key.new()
    key.save(path, passphrase)
    path.chmod(mode)
    for read in (is_locked, Key.load):
        with pytest.raises(Exposed, match=f"chmod 600 {path}"):
            read(path)
    path.chmod(0o400)
    (tmp_path / "link").symlink_to(path)
    assert Key.load(tmp_path / "link", passphrase).public == key.public


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_key_of_another_owner_may_be_handed_out_through_a_group_but_not_to_all(tmp_path):
    path = tmp_path / "a.key"
    Key.new().save(path)
    os.chown(path, 12345, 12345)
    path.chmod(0o440)
    Key.load(path)
    path.chmod(0o444)
    with pytest.raises(Exposed, match="other users"):
        Key.load(path)


def test_what_is_no_regular_file_is_no_key(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, reason in ((tmp_path, "is a folder"), (tmp_path / "pipe", "is a pipe"), (tmp_path / "no", "not exist")):
        with pytest.raises(UnreadableFile, match=reason):
            Key.load(path)


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"x" * 5000, b"-----BEGIN PRIVATE KEY-----\n"])
def test_what_is_no_key_is_refused(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    (tmp_path / "x").chmod(0o600)
    with pytest.raises(UnreadableFile, match="is no private key"):
        Key.load(tmp_path / "x")


def test_keys_of_another_kind_are_refused(tmp_path):
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    other = X25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "x").write_bytes(other)
    (tmp_path / "x").chmod(0o600)
    with pytest.raises(UnreadableFile, match="is no private key"):
        Key.load(tmp_path / "x")


def test_a_private_key_is_never_shown():
    key = Key.new()
    assert key.public in repr(key)
    assert len(repr(key)) < 80


def test_fingerprints_differ_and_words_say_the_same_as_hex():
    # Words to numbers, by the table of arXiv:0901.4016.
    found = fingerprint_of(Key.new().public)
    values = {letter: i for i, letter in enumerate("bdfghjklmnprstvz")} | {v: i for i, v in enumerate("aiou")}
    numbers = []
    for word in found.words.split():
        number = 0
        for letter, bits in zip(word, (4, 2, 4, 2, 4), strict=True):
            number = number << bits | values[letter]
        numbers.append(f"{number:04x}")
    assert " ".join(numbers) == found.hex
    assert len(numbers) == 8
    assert fingerprint_of(Key.new().public) != found


@pytest.mark.parametrize("text", ["", "ed25519:", "ed25519:AAAA", "rsa:" + "A" * 43, "ed25519:" + "A" * 42 + "B", "ä"])
def test_public_keys_have_one_form(text):
    with pytest.raises(ValueError, match="a public key is"):
        public_bytes(text)
    with pytest.raises(InvalidStudy, match="roster: a: a public key is"):
        small_study(roster={"a": text or "x"})


def test_the_roster_is_outside_the_fingerprint_and_inside_the_round(study, keyed):
    signed, keys = keyed
    assert signed.fingerprint == study.fingerprint
    contexts = {
        round_of(study).context,
        round_of(signed).context,
        round_of(signed, 2).context,
        round_of(small_study(name="other")).context,
    }
    assert len(contexts) == 4
    assert roster_hash(signed.roster) == roster_hash(dict(reversed(signed.roster.items())))
    with pytest.raises(InvalidStudy, match="a and b have the same key"):
        small_study(roster={"a": keys["a"].public, "b": keys["a"].public})


def test_no_two_envelopes_say_the_same():
    one = Envelope("f", "1", "ctx", "ab", "c", "d")
    other = Envelope("f", "1", "ctx", "a", "bc", "d")
    assert one.statement != other.statement


def test_a_signed_study_runs_through_files(keyed, messages, tmp_path):
    study, keys = keyed
    within = round_of(study)
    for name, message in messages.items():
        write_message(message, tmp_path / name, within, keys[name])
    letters = [open_message(tmp_path / name, study, within) for name in messages]
    assert all(letter.verified for letter in letters)
    total = combine(letter.body for letter in letters)
    write_total(total, tmp_path / "total", within, keys["hub"])
    assert open_total(tmp_path / "total", study, within).verified
    assert read_total(tmp_path / "total", study, within) == total
    values = small_values(study)
    write_values(values, tmp_path / "values", within, keys["a"])
    assert read_values(tmp_path / "values", within) == values.values


class TestRefused:
    """A message of site a, written to a file and read by someone who expects something else."""

    @pytest.fixture
    def path(self, keyed, messages, tmp_path):
        study, keys = keyed
        write_message(messages["a"], tmp_path / "a.fdtr", round_of(study), keys["a"])
        return tmp_path / "a.fdtr"

    def test_of_another_round_and_replayed(self, keyed, path):
        study, _ = keyed
        with pytest.raises(OtherRound, match="round 1, which is over"):
            read_message(path, study, round_of(study, 2))
        with pytest.raises(OtherRound, match="is of round '1'; this is round 'x'"):
            read_message(path, study, Round(study.fingerprint, study.roster, "x"))

    def test_of_another_study(self, keyed, path):
        study, _ = keyed
        other = Study.model_validate({**small_study(name="other").model_dump(), "roster": study.roster})
        with pytest.raises(OtherStudy, match="belongs to another study"):
            read_message(path, other, round_of(other))

    def test_of_a_site_that_the_roster_lacks(self, keyed, path):
        study, keys = keyed
        fewer = Round(study.fingerprint, {"b": keys["b"].public})
        with pytest.raises(BadSignature, match="the roster has no site 'a'; it has b"):
            read_message(path, study, fewer)

    def test_under_another_roster(self, keyed, path):
        study, _ = keyed
        changed = Round(study.fingerprint, {**study.roster, "b": Key.new().public})
        with pytest.raises(OtherRoster, match="under another list of keys"):
            read_message(path, study, changed)
        with pytest.raises(OtherRoster):
            read_message(path, study, round_of(small_study()))

    def test_not_signed_though_the_roster_has_a_key(self, keyed, path):
        study, _ = keyed
        path.write_bytes(forged(path.read_bytes()))
        with pytest.raises(BadSignature, match="is not signed, and the roster has a key of site 'a'"):
            read_message(path, study, round_of(study))

    def test_signed_by_another_site(self, keyed, messages, path):
        study, keys = keyed
        roster = {**study.roster, "a": keys["b"].public, "b": keys["a"].public}  # to let b sign as a
        content = encode_message(messages["a"], Round(study.fingerprint, roster), keys["b"])
        signature = content[content.index(b'signature\\":\\"') + 14 :][:128]
        mine = path.read_bytes()
        start = mine.index(b'signature\\":\\"') + 14
        path.write_bytes(mine[:start] + signature + mine[start + 128 :])
        with pytest.raises(BadSignature, match="is not signed by site 'a', or was changed"):
            read_message(path, study, round_of(study))

    def test_a_signature_of_one_site_is_none_of_another(self, keyed, path):
        study, _ = keyed
        content = path.read_bytes()
        start = content.index(b'signature\\":\\"') + 14
        renamed = forged(content, site="b")
        place = renamed.index(b'signature\\":\\"') + 14
        path.write_bytes(renamed[:place] + content[start : start + 128] + renamed[place + 128 :])
        with pytest.raises(BadSignature, match="not signed by site 'b'"):
            read_message(path, study, round_of(study))

    def test_a_signature_that_nobody_can_check(self, study, messages, keyed, tmp_path):
        _, keys = keyed
        envelope = Envelope(study.fingerprint, "1", round_of(study).context, "a", "sums", "0" * 64)
        with pytest.raises(BadSignature, match="the roster has no key of site 'a' to check it with"):
            verify(envelope, keys["a"].sign(envelope.statement), round_of(study), "sums", "x")
        assert verify(envelope, UNSIGNED, round_of(study), "sums", "x") is False

    def test_of_another_part_of_the_round(self, keyed):
        study, keys = keyed
        within = round_of(study)
        envelope = Envelope(study.fingerprint, "1", within.context, "a", "values", "0" * 64)
        with pytest.raises(OtherRound, match="belongs to the part 'values' of a round, not to 'sums'"):
            verify(envelope, keys["a"].sign(envelope.statement), within, "sums", "x")


def test_nobody_writes_what_nobody_would_believe(keyed, messages, tmp_path):
    study, keys = keyed
    within = round_of(study)
    with pytest.raises(BadSignature, match="Give its key with --key"):
        write_message(messages["a"], tmp_path / "a", within)
    with pytest.raises(BadSignature, match="not the one that the roster has of 'a'"):
        write_message(messages["a"], tmp_path / "a", within, keys["b"])
    with pytest.raises(BadSignature, match="the roster has no site 'a'"):
        write_message(messages["a"], tmp_path / "a", Round(study.fingerprint, {"b": keys["b"].public}), keys["a"])
    with pytest.raises(BadSignature, match="has a key of 'hub', so what it sends must be signed"):
        write_total(combine(m.summary for m in messages.values()), tmp_path / "a", within)
    assert not list(tmp_path.iterdir())


def test_a_hub_without_a_key_sends_unsigned_totals(study, messages, tmp_path):
    signed, _ = with_roster(study, "a", "b", "c")
    within = numbered_round(signed.fingerprint, signed.roster, 1)
    write_total(combine(m.summary for m in messages.values()), tmp_path / "total", within)
    assert not open_total(tmp_path / "total", signed, within).verified


class TestRosterInAFile:
    TEXT = (
        '# our study\nname = "x"  # a name\nhorizon = 2\ncovariates = [{ name = "u" }]\n\n[actions]\nlevels = [0, 1]\n'
    )

    @pytest.fixture
    def path(self, tmp_path):
        (tmp_path / "study.toml").write_text(self.TEXT)
        return tmp_path / "study.toml"

    def test_comments_stay(self, path):
        keys = {name: Key.new().public for name in ("north", "St. Mary's", "hub")}
        set_roster(path, keys)
        assert Study.load(path).roster == keys
        assert path.read_text().startswith(self.TEXT.rstrip())
        path.write_text(path.read_text() + "\n[features]\nscale = 'unit' # as ever\n")
        del keys["north"]
        set_roster(path, keys)
        assert Study.load(path).roster == keys
        assert "# as ever" in path.read_text()
        assert "# a name" in path.read_text()
        set_roster(path, {})
        assert Study.load(path).roster == {}

    def test_another_form_is_left_alone(self, path):
        text = f'roster = {{ a = "{Key.new().public}" }}\n' + self.TEXT
        path.write_text(text)
        with pytest.raises(InvalidStudy, match="It was left as it is"):
            set_roster(path, {"b": Key.new().public})
        assert path.read_text() == text
