"""Messages that are read one at a time: the same total as from memory, little memory, and the same refusals."""

import itertools
import re
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from fdtr.cli.app import app
from fdtr.errors import (
    DamagedFile,
    FdtrError,
    ForeignFile,
    InvalidSums,
    MissingFile,
    OtherStudy,
    UnreadableFile,
    WrongSite,
)
from fdtr.exchange import streamed_messages
from fdtr.exchange.envelopes import seal
from fdtr.exchange.streamed_messages import StreamedMessages
from fdtr.exchange.wire import HEADER_BYTES, MESSAGE, SUMS_PHASE, encode_message, read_total, write_message, write_total
from fdtr.hub import MOST_COMPARED, combine_messages, doubtful_messages, not_compared
from fdtr.simulation import NO_DISCLOSURE_RULES
from fdtr.site.fitting import fit_message
from fdtr.site.site_message import summarize
from fdtr.summary import SiteSummary
from message_files import round_of, small_messages, small_study
from random_tables import make_sites, make_study
from refusals import refuses

pytestmark = pytest.mark.quick

KINDS = {
    "weighted": {},
    "exact": {"disclosure": NO_DISCLOSURE_RULES},
    "grams": {"disclosure": NO_DISCLOSURE_RULES | {"payload": "gram"}},
}


@pytest.fixture(params=KINDS)
def study(request):
    return make_study(**KINDS[request.param])


@pytest.fixture
def folder(study, tmp_path):
    """A folder with the messages of four sites; the files are not in the order of the sites' names."""
    place = tmp_path / "messages"
    place.mkdir()
    for number, (_, rows) in enumerate(make_sites(study, {"d": 150, "a": 200, "c": 120, "b": 250}).items()):
        write_message(summarize(study, rows), place / f"{7 * (number + 1) % 5}.fdtr", round_of(study))
    return place


def in_memory(study, folder):
    return combine_messages(study, [StreamedMessages([folder], study)[index] for index in range(4)])


def test_files_give_the_same_total_in_every_order(study, folder):
    here, paths, expected = round_of(study), sorted(folder.iterdir()), in_memory(study, folder)
    assert expected.sites == tuple("abcd")
    assert combine_messages(study, StreamedMessages([folder], study, here)) == expected
    for order in itertools.permutations(paths):
        assert combine_messages(study, StreamedMessages(order, study, here)) == expected
        assert combine_messages(study, [StreamedMessages([path], study)[0] for path in order]) == expected
    moved = paths[0].rename(folder.parent / "elsewhere.fdtr")
    assert combine_messages(study, StreamedMessages([moved, folder], study, here)) == expected


def test_sites_are_compared_alike(study, folder):
    received = StreamedMessages([folder], study, round_of(study))
    assert doubtful_messages(received) == doubtful_messages(list(received)) == ()
    assert not_compared(len(received)) == ""
    assert f"at most {MOST_COMPARED} sites" in not_compared(MOST_COMPARED + 1)


def test_half_written_files_are_passed_over_and_links_are_not_followed(study, folder):
    expected = in_memory(study, folder)
    (folder / ".half.fdtr.1a2b").write_bytes(b"half")
    assert combine_messages(study, StreamedMessages([folder], study, round_of(study))) == expected
    (folder / "more").mkdir()
    with pytest.raises(UnreadableFile, match="is a folder, not a file"):
        StreamedMessages([folder], study)
    (folder / "more").rmdir()
    (folder / "link.fdtr").symlink_to("0.fdtr")
    with pytest.raises(UnreadableFile, match="is a link to somewhere else"):
        StreamedMessages([folder], study)
    with pytest.raises(MissingFile, match="does not exist"):
        StreamedMessages([folder / "nothing"], study)


def test_a_message_that_changes_between_two_readings_is_refused(tmp_path):
    study = small_study()
    messages, others = small_messages(study), small_messages(study, n=410)
    write_message(messages["a"], tmp_path / "a.fdtr")
    received = StreamedMessages([tmp_path], study)
    assert received[0] == received[0] == messages["a"].summary
    write_message(others["a"], tmp_path / "a.fdtr")
    with pytest.raises(DamagedFile, match="changed while messages were added"):
        received[0]
    write_message(messages["b"], tmp_path / "a.fdtr")
    with pytest.raises(DamagedFile, match="changed while messages were added"):
        received[0]


@pytest.mark.parametrize("at_once", [1, 2, 32])
def test_impossible_sums_are_refused_with_their_file_and_site(tmp_path, monkeypatch, at_once):
    monkeypatch.setattr(streamed_messages, "_AT_ONCE", at_once)
    study = small_study()
    here = round_of(study)
    for site, message in small_messages(study).items():
        packed = message.summary.sums.packed()
        packed["schur_moment"] = packed["schur_moment"] * (1e4 if site == "b" else 1)
        content = seal(MESSAGE, SUMS_PHASE, site, {}, packed, here, None, HEADER_BYTES)
        (tmp_path / f"{site}.fdtr").write_bytes(content)
    with pytest.raises(InvalidSums, match=r"b\.fdtr: the sums of site 'b' cannot .*: step 0: s is larger than 400"):
        combine_messages(study, StreamedMessages([tmp_path], study, here))


def test_there_are_no_more_sites_than_a_total_holds(tmp_path, monkeypatch):
    study = small_study()
    for site, message in small_messages(study).items():
        write_message(message, tmp_path / f"{site}.fdtr")
    monkeypatch.setattr(streamed_messages, "MOST_SITES", 2)
    with pytest.raises(UnreadableFile, match="more than 2 files"):
        StreamedMessages([tmp_path], study)


def test_only_messages_in_the_order_of_names_are_added():
    class Backwards(list):  # a sequence that is no list is not sorted
        pass

    study = small_study()
    summaries = [message.summary for message in small_messages(study).values()]
    assert combine_messages(study, summaries[::-1]).sites == ("a", "b", "c")
    with pytest.raises(ValueError, match="sites come in the order of names"):
        combine_messages(study, dict(enumerate(summaries[::-1])).values())


def test_memory_does_not_grow_by_what_a_message_holds(tmp_path):
    """2 KB a message; what stays of a site is its name, its file and some digests."""
    study = small_study(disclosure=NO_DISCLOSURE_RULES)
    [rows] = make_sites(study, {"a": 40}).values()
    sums, here = fit_message(study, rows).summary.sums, round_of(study)
    peaks = []
    for n_sites in (200, 1200):
        place = tmp_path / str(n_sites)
        place.mkdir()
        for k in range(n_sites):
            packed = sums.times(1 - k / 1e4).packed()
            content = seal(MESSAGE, SUMS_PHASE, f"device-{k:06}", {}, packed, here, None, HEADER_BYTES)
            (place / f"{k}.fdtr").write_bytes(content)
        tracemalloc.start()
        total = combine_messages(study, StreamedMessages([place], study, here))
        write_total(total, tmp_path / "total.fdtr", here)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(total.sites) == n_sites
        assert read_total(tmp_path / "total.fdtr", study, here) == total
    assert (peaks[1] - peaks[0]) / 1000 < 1000


def command(place, *files, out="total.fdtr"):
    arguments = ["hub", "combine", str(place / "study.toml"), *(str(place / name) for name in files)]
    app([*arguments, "--out", str(place / out)], standalone_mode=False)


@pytest.fixture
def place(tmp_path):
    """A study, and a folder with the messages of three sites."""
    study = small_study()
    study.save(tmp_path / "study.toml")
    (tmp_path / "in").mkdir()
    for site, message in small_messages(study).items():
        write_message(message, tmp_path / "in" / f"{site}.fdtr", round_of(study))
    return tmp_path


def test_the_command_adds_a_folder_of_messages(place, capsys):
    command(place, "in")
    assert "Added the sums of 3 sites: a, b, c; 1,200 patients." in capsys.readouterr().out
    command(place, *(f"in/{site}.fdtr" for site in "cab"), out="again.fdtr")
    assert (place / "total.fdtr").read_bytes() == (place / "again.fdtr").read_bytes()


@pytest.mark.parametrize(
    ("spoil", "error", "match"),
    [
        ("duplicate", WrongSite, "'a' is already in the total"),
        ("copy", WrongSite, "'a' and 'z' sent the same sums"),
        ("other study", OtherStudy, "belongs to another study"),
        ("cut", DamagedFile, "truncated, damaged"),
        ("changed", DamagedFile, "checksum differs"),
        ("total", ForeignFile, "holds a total, not a message"),
        ("too few", FdtrError, "rule SITES asks for 3"),
        ("inside", FdtrError, "is in the folder of the messages"),
        ("empty", WrongSite, "nothing to combine"),
    ],
)
def test_what_is_refused_leaves_no_total(place, spoil, error, match):
    study, messages, folder, out = small_study(), small_messages(small_study()), place / "in", "total.fdtr"
    content = (folder / "b.fdtr").read_bytes()
    if spoil == "duplicate":
        (folder / "other.fdtr").write_bytes((folder / "a.fdtr").read_bytes())
    elif spoil == "copy":
        twin = replace(messages["a"].summary, site="z")
        packed = twin.sums.packed()
        content = seal(MESSAGE, SUMS_PHASE, "z", {}, packed, round_of(study), None, HEADER_BYTES)
        (folder / "z.fdtr").write_bytes(content)
    elif spoil == "other study":
        other = small_study(name="other")
        (folder / "z.fdtr").write_bytes(encode_message(small_messages(other, sites="z")["z"], round_of(other)))
    elif spoil == "cut":
        (folder / "b.fdtr").write_bytes(content[:-3])
    elif spoil == "changed":
        (folder / "b.fdtr").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif spoil == "total":
        write_total(combine_messages(study, [m.summary for m in messages.values()]), folder / "t.fdtr", round_of(study))
    elif spoil == "too few":
        (folder / "b.fdtr").unlink()
    elif spoil == "inside":
        out = "in/total.fdtr"
    else:
        for path in folder.iterdir():
            path.unlink()
    before = sorted(place.rglob("*"))
    with pytest.raises(error, match=match):
        command(place, "in", out=out)
    assert sorted(place.rglob("*")) == before


def test_rule_sites_counts_the_senders_of_each_step(place):
    study = small_study(disclosure=NO_DISCLOSURE_RULES | {"min_sites": 3})
    sites = make_sites(study, dict.fromkeys("abc", 60))
    summaries = [fit_message(study, rows).summary for rows in sites.values()]
    withheld = [summaries[0].without([1]), *summaries[1:]]
    with refuses("SITES", match=re.escape("2 sites came together with sums of step 1, which the others withheld")):
        combine_messages(study, withheld)


def test_a_message_in_a_list_may_be_anything_that_was_summed():
    study = small_study(disclosure=NO_DISCLOSURE_RULES)
    sites = make_sites(study, {"a": 30, "b": 30})
    total = combine_messages(study, tuple(fit_message(study, rows).summary for rows in sites.values()))
    assert isinstance(total.sums, type(SiteSummary("a", "", total.sums).sums))
    assert np.array_equal(total.sums.n, [60.0, 60.0])
