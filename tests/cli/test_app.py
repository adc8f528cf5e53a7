"""The table of commands: it says what the functions say, every entry loads, and listing it loads nothing."""

import importlib
import inspect
import re
import subprocess
import sys

import pytest
import typer

from fdtr.cli.app import COMMANDS, Group, app

HEAVY = ("numpy", "pydantic", "fdtr.study", "fdtr.cli.show", "fdtr.cli.options")


def entries(panels, *path):
    for listed in panels.values():
        for name, entry in listed.items():
            if isinstance(entry, Group):
                yield from entries(entry.panels, *path, name)
            else:
                yield (*path, name), entry


ENTRIES = dict(entries(COMMANDS))


def loaded_by(*arguments):
    """The modules that a fresh process has loaded after `fdtr` with these arguments."""
    code = (
        "import sys\n"
        f"sys.argv = {['fdtr', *arguments]!r}\n"
        "from fdtr.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "print('LOADED', *sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split("LOADED", 1)[1].split())


@pytest.mark.quick
@pytest.mark.parametrize("path", ENTRIES, ids=" ".join)
def test_an_entry_says_the_first_sentence_of_its_functions_docstring(path):
    module, _, function = ENTRIES[path].function.partition(":")
    documentation = inspect.getdoc(getattr(importlib.import_module(f"fdtr.cli.{module}"), function))
    [sentence] = re.findall(r"\A.*?\.(?=\s|\Z)", documentation)
    assert ENTRIES[path].summary == sentence
    assert len(sentence) <= 66  # one line of an 80-column help page


@pytest.mark.quick
@pytest.mark.parametrize("path", ENTRIES, ids=" ".join)
def test_every_entry_loads_and_has_help(path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as end:
        typer.main.get_command(app)([*path, "--help"], prog_name="fdtr")
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert f"fdtr {' '.join(path)}" in shown
    assert ENTRIES[path].summary in " ".join(shown.split())
    assert "…" not in shown.replace("clif_adt.parquet, …", "")
    assert not re.search(r" \.\s", shown)  # a word in brackets that was taken for markup leaves its full stop alone


TAKE_TABLES = {
    ("run",),
    ("init",),
    ("check",),
    ("tune",),
    ("table", "partition"),
    ("site", "summarize"),
    ("site", "fit"),
    ("site", "evaluate"),
    ("site", "join"),
}


@pytest.mark.quick
@pytest.mark.parametrize("path", ENTRIES, ids=" ".join)
def test_a_command_that_takes_a_table_takes_one_of_a_database_in_its_place(path, capsys):
    parameters = [parameter.name for parameter in ENTRIES[path].load(path[-1]).params]
    assert (path in TAKE_TABLES) == ("data" in parameters) == ("table" in parameters)
    if path in TAKE_TABLES:
        place = parameters.index("data")
        assert parameters[place : place + 3] == ["data", "db", "table"]
        assert "--db" in usage(capsys, *path, "--help", code=0).out


def usage(capsys, *arguments, code):
    """What the program prints of these arguments before it ends with this code."""
    with pytest.raises(SystemExit) as end:
        typer.main.get_command(app)([*arguments], prog_name="fdtr")
    assert end.value.code == code
    return capsys.readouterr()


@pytest.mark.quick
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["site", "fit", "s.toml", "t.csv", "total", "--db", "duckdb:x", "--table", "y", "--out", "p"], "named twice"),
        (["site", "fit", "--db=duckdb:x", "s.toml", "total", "--out", "p"], "add --table NAME"),
        (["site", "fit", "s.toml", "total", "--table", "y", "--out", "p"], "add --db ADDRESS, or leave --table out"),
        (["site", "join", "f", "--site", "a", "--data", "t.csv", "--db", "duckdb:x", "--table", "y"], "named twice"),
        (["site", "join", "f", "--site", "a"], "Name the table: a file or folder"),
        (["table", "partition", "s.toml", "--out", "p"], "with --db ADDRESS --table NAME"),
        (["check", "s.toml"], "with --db ADDRESS --table NAME"),
        (["check", "--db", "duckdb:x", "--table", "y"], "Missing argument 'STUDY'"),
        (["check", "s.toml", "--db"], "requires an argument"),
    ],
    ids=" ".join,
)
def test_a_table_is_named_in_one_way(arguments, told, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    assert told in " ".join(usage(capsys, *arguments, code=2).err.split())


@pytest.mark.quick
@pytest.mark.parametrize("arguments", [("--help",), ("site", "--help"), ("hub", "--help"), ("--version",)])
def test_listing_commands_imports_none_of_them(arguments):
    loaded = loaded_by(*arguments)
    assert not loaded.intersection(HEAVY)
    modules = {f"fdtr.cli.{entry.function.partition(':')[0]}" for entry in ENTRIES.values()}
    assert not loaded.intersection(modules)


@pytest.mark.quick
@pytest.mark.parametrize(
    "arguments", [("hub", "combine"), ("hub", "next"), ("hub", "serve"), ("status",), ("roster", "add")]
)
def test_a_command_of_the_hub_loads_nothing_that_fits(arguments):
    loaded = loaded_by(*arguments, "--help")
    fits = ("fdtr.learners", "fdtr.site", "fdtr.tuning", "fdtr.evaluation", "fdtr.pipeline")
    assert not [module for module in loaded if module.startswith(fits)]


@pytest.mark.quick
def test_only_commands_of_the_network_and_of_extraction_load_their_code():
    for arguments in (("run",), ("check",), ("site", "summarize"), ("hub", "combine")):
        loaded = loaded_by(*arguments, "--help")
        apart = ("flwr", "fdtr.exchange.flower", "fdtr.exchange.remote", "fdtr.cohort", "duckdb")
        assert not [module for module in loaded if module.startswith(apart)]


@pytest.mark.quick
def test_help_lists_commands_by_role_in_the_order_of_use(capsys):
    with pytest.raises(SystemExit):
        typer.main.get_command(app)(["--help"], prog_name="fdtr")
    shown = capsys.readouterr().out
    words = ["Try it", "demo", "Study and policy", "init", "check", "At a site", "site", "At the hub", "hub", "roster"]
    places = [re.search(rf"(?m)^. ?.? ?{word} ", shown).start() for word in words]
    assert places == sorted(places)


@pytest.mark.quick
def test_a_mistyped_command_is_suggested_once(capsys):
    with pytest.raises(SystemExit) as end:
        typer.main.get_command(app)(["site", "sumarize"], prog_name="fdtr")
    assert end.value.code == 2
    assert capsys.readouterr().err.count("'summarize'") == 1
