"""Tables on narrow terminals: every word and every number is printed, and no letter is left out."""

import math

import pytest

from fdtr.cli import show
from fdtr.cli.check_output import show_checks
from fdtr.cli.study_output import show_results
from fdtr.pipeline.run import run
from fdtr.pipeline.simulate import simulate
from fdtr.report.record import Span, Subgroup
from fdtr.simulation import WorldSpec
from fdtr.site.rows import read_trajectories
from fdtr.site.site_check import check

WIDE, NARROW = 1000, (80, 60)


def printed(monkeypatch, capsys, width, function, *arguments, **options):
    monkeypatch.setenv("COLUMNS", str(width))
    function(*arguments, **options)
    return capsys.readouterr().out


@pytest.fixture(scope="module")
def nine_sites(tmp_path_factory):
    """A study of nine hospitals with long names, its table, and its results."""
    folder = tmp_path_factory.mktemp("nine")
    study = simulate(WorldSpec(n_sites=9, horizon=2), folder, patients=60)
    table = (folder / "table.csv").read_text().replace("\nsite-", "\nUniversity Hospital of the Northern Province ")
    (folder / "table.csv").write_text(table)
    rows = read_trajectories(folder / "table.csv", study)
    return study, rows, run(study, rows)


@pytest.mark.slow
@pytest.mark.parametrize("width", NARROW)
def test_results_of_nine_sites_lose_nothing_on_a_narrow_terminal(nine_sites, width, monkeypatch, capsys, tmp_path):
    _, _, results = nine_sites
    wide = printed(monkeypatch, capsys, WIDE, show_results, results, tmp_path, False)
    narrow = printed(monkeypatch, capsys, width, show_results, results, tmp_path, False)
    assert set(narrow.split()) == set(wide.split())  # each number, name and word whole
    assert "…" not in narrow
    [agreement] = [part for part in narrow.split("\n\n") if part.startswith("linear-mdp: in how many")]
    assert max(len(line) for line in agreement.splitlines()) <= width
    for site, site_record in results.record.sites.items():
        assert site.split()[-1] in narrow
        assert f"{site_record.agreement_with_practice:.0%}" in narrow


@pytest.mark.slow
@pytest.mark.parametrize("width", NARROW)
def test_checks_of_nine_sites_lose_nothing_on_a_narrow_terminal(nine_sites, width, monkeypatch, capsys):
    study, rows, _ = nine_sites
    checks = [check(study, part) for part in rows.by_site().values()]
    wide = printed(monkeypatch, capsys, WIDE, show_checks, study, checks, False, everything=True)
    narrow = printed(monkeypatch, capsys, width, show_checks, study, checks, False, everything=True)
    assert set(narrow.split()) == set(wide.split())
    assert narrow.count("…") == 2  # the fingerprint's beginning, in short and above the tables


@pytest.mark.quick
def test_a_wide_table_becomes_several_that_name_their_rows(monkeypatch, capsys):
    columns = ["site", "step", *(f"method {number}" for number in range(9))]
    rows = [[site, str(step), *(f"{step}.{number}" for number in range(9))] for site in "ab" for step in range(2)]
    out = printed(monkeypatch, capsys, 60, show.table, "Values", columns, rows, keys=2)
    title, *tables = out.rstrip().split("\n\n")
    first, *headings = title.splitlines()
    assert first == "Values"
    tables.insert(0, "\n".join(headings))
    assert len(tables) == 2
    for table in tables:
        names = [line.split()[:2] for line in table.splitlines()[-4:]]
        assert names == [["a", "0"], ["a", "1"], ["b", "0"], ["b", "1"]]
    assert all(len(line) <= 60 for line in out.splitlines())


@pytest.mark.quick
@pytest.mark.parametrize("width", [20, 40, 60, 80, 132])
def test_numbers_are_never_wrapped_at_any_width(width, monkeypatch, capsys):
    values = ["8.547 (0.00 to 15.00) ×", "-0.123 ± 0.004", "1,234,567"]
    rows = [["a hospital whose name is long", *values, "A sentence that may wrap at its spaces, and does."]]
    out = printed(monkeypatch, capsys, width, show.table, "Title", ["site", "x", "y", "z", "why"], rows)
    for value in values:
        assert value in out
    assert {"hospital", "sentence", "spaces,"} <= set(out.split())
    assert "…" not in out


@pytest.mark.quick
def test_headings_wrap_before_columns_move_below(monkeypatch, capsys):
    columns = ["site", "patients", "Q-learn (1)", "Q-learn (1-MV)"]
    rows = [["north", "200", "46%", "47%"]]
    assert len(printed(monkeypatch, capsys, 60, show.table, "Same", columns, rows).splitlines()) == 4
    out = printed(monkeypatch, capsys, 34, show.table, "Same", columns, rows)
    assert [line.split() for line in out.splitlines()] == [
        ["Same"], ["Q-learn", "Q-learn"], ["site", "patients", "(1)", "(1-MV)"], ["north", "200", "46%", "47%"], [],
    ]  # fmt: skip


@pytest.mark.quick
def test_words_are_printed_as_they_are(capsys):
    show.line("site [bold]:smile: 1/2")
    assert capsys.readouterr().out == "site [bold]:smile: 1/2\n"


def test_a_group_that_is_withheld_shows_no_number(monkeypatch, capsys):
    nothing = dict.fromkeys(("value", "low", "high", "p_value"), math.nan)
    common = {"site": "north", "method": "FDTR (verified)", "group": "lactate"}
    shown = Subgroup(**common, label="below 4", n=120, value=0.3, low=0.1, high=0.5, p_value=0.0000004, reason="")
    withheld = Subgroup(**common, label="4 and more", n=None, reason="It has fewer than 50 patients.", **nothing)
    monkeypatch.setenv("COLUMNS", "160")
    show.subgroups_table([shown, withheld])
    _, _, first, second = capsys.readouterr().out.rstrip().splitlines()
    assert " ".join(first.split()) == "north lactate below 4 120 +0.300 (0.100 to 0.500) p < 0.001"
    assert " ".join(second.split()) == "north lactate 4 and more – – – It has fewer than 50 patients."
    show.subgroups_table([])
    assert capsys.readouterr().out == ""


def test_intervals_are_written_alike():
    assert show.interval(Span(value=2.7, low=1.2, high=3)) == "2.700 (1.200 to 3.000)"
    assert show.interval(Span(value=0.12, low=0.004, high=0.2), gain=True) == "+0.120 (0.004 to 0.200)"
    assert show.interval(Span(value=math.nan, low=math.nan, high=math.nan), gain=True) == "–"
    assert show.interval(Span(value=0.5, low=math.nan, high=math.nan)) == "0.500"
