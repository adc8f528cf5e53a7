"""Files of every format version, as they were written: read forever, or refused by name.

`golden/N/` holds files of format N: site a's message, the total of a, b and c, a's values, a's Grams, and the total of
a secure sum, signed; expected.json tells whose they are and what they hold. `golden/N/secure-sum/` is the whole folder
of another secure sum, in which d announced its key and sent nothing more. They are never made again: a new format adds
a folder.
"""

import json
import re
from pathlib import Path

import pytest

import fdtr
from fdtr.container import FORMAT
from fdtr.errors import NoStudyFolder, OtherFormat
from fdtr.exchange.folder.round_snapshot import read_round
from fdtr.exchange.wire import open_message, open_total, open_values
from fdtr.signing import Round
from message_files import small_study

pytestmark = pytest.mark.quick
GOLDEN = Path(__file__).with_name("golden")
VERSIONS = sorted(int(folder.name) for folder in GOLDEN.iterdir())


def test_the_table_of_versions_names_this_one_and_every_format():
    page = Path(__file__).parents[2] / "docs" / "network.md"
    rows = re.findall(
        r"^\| ([\d.]+) \| ([\d.]+) \| (\d+) \| (yes|no) \|$", page.read_text(encoding="utf-8"), re.MULTILINE
    )
    here = ".".join(fdtr.__version__.split(".")[:2])
    assert (here, here, str(FORMAT), "yes") in rows
    assert {int(written) for _, _, written, _ in rows} == set(VERSIONS)


def test_every_format_has_its_files():
    assert list(range(1, FORMAT + 1)) == VERSIONS
    for version in VERSIONS:
        names = {path.name for path in (GOLDEN / str(version)).iterdir()}
        assert names == {"a.message", "abc.total", "a.values", "a.gram", "abc.masked", "expected.json", "secure-sum"}


@pytest.mark.parametrize("version", VERSIONS)
def test_files_of_every_format_are_read_or_refused_by_name(version):
    folder = GOLDEN / str(version)
    told = json.loads((folder / "expected.json").read_text())
    study = small_study()  # for the shape; rounds are told by their fingerprint
    within = Round(told["fingerprint"], told["roster"], told["round"])
    if version != FORMAT:
        with pytest.raises(OtherFormat, match=f"has format {version}; this version of fdtr reads format {FORMAT}"):
            open_message(folder / "a.message", study, within)
        return
    message = open_message(folder / "a.message", study, within)
    total = open_total(folder / "abc.total", study, within)
    values = open_values(folder / "a.values", within)
    for letter, name in ((message, "message"), (total, "total"), (values, "values")):
        assert letter.verified
        assert letter.envelope.digest == told["digests"][name]
    assert message.body.digest == told["summary"] == dict(total.body.members)["a"]
    assert message.body.sums.n.tolist() == [400, 400]
    assert total.body.sites == ("a", "b", "c")
    assert total.body.sums.n.tolist() == [1200, 1200]
    assert [(one.name, one.value) for one in values.body.values] == [
        ("FDTR", 1.25), ("LDTR", 1.25), ("FDTR − Clinicians", 0.25),
    ]  # fmt: skip
    gram, masked = told["gram"], told["masked"]
    audit = small_study(disclosure={"payload": "gram"})
    found = open_message(folder / "a.gram", audit, Round(gram["fingerprint"], gram["roster"], gram["round"]))
    assert (found.verified, found.envelope.digest) == (True, gram["digest"])
    assert found.body.digest == gram["summary"]
    secure = small_study(disclosure={"secure_sum": True, "max_patients": 1000})
    rounded = open_total(folder / "abc.masked", secure, Round(masked["fingerprint"], masked["roster"], masked["round"]))
    assert (rounded.verified, rounded.envelope.digest) == (True, masked["digest"])
    assert rounded.body.resolution == 2.0 ** -masked["bits"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_secure_sum_of_every_format_is_opened_again_or_refused_by_name(version):
    if version != FORMAT:
        with pytest.raises(NoStudyFolder, match=f"has format {version}; this version of fdtr reads format {FORMAT}"):
            read_round(GOLDEN / str(version) / "secure-sum")
        return
    board = read_round(GOLDEN / str(version) / "secure-sum")
    assert not board.faults
    assert sorted(board.keys) == ["a", "b", "c", "d"]
    for phase in (board.counting, board.summing):
        assert phase.survivors.sites == tuple(phase.masked) == tuple(phase.confirmed) == tuple(phase.opened)
        assert phase.survivors.sites == ("a", "b", "c")
    assert board.common.functions == ()
    assert board.add_up(board.summing.survivors.sites) == board.checked_total()
