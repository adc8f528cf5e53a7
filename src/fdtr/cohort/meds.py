"""From MEDS event shards, with a user's map of codes, to the three relations of an extraction.

MEDS is the Medical Event Data Standard: one long table of events (subject_id, time, code, numeric_value) in Parquet
shards, into which public programs turn MIMIC-IV, eICU, OMOP, FHIR and others. Its codes are free, so the user says what
they mean.
"""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from fdtr.cohort.database import Database
from fdtr.cohort.dialects import quoted, statement
from fdtr.cohort.engines import MEMORY, open_database
from fdtr.cohort.flow import Flow
from fdtr.cohort.meds_settings import Meds, MedsExtraction
from fdtr.cohort.rules import keep_cohort
from fdtr.cohort.sources import Read, columns_of, literal
from fdtr.cohort.steps import HOUR, Source, make_table
from fdtr.errors import InvalidSettings, MissingColumn, MissingTable
from fdtr.progress import Progress, ignore_progress

COLUMNS = ("subject_id", "time", "code", "numeric_value")


def extract(
    folder: Path,
    settings: MedsExtraction,
    *,
    site: str | None = None,
    memory: str = MEMORY,
    progress: Progress = ignore_progress,
) -> Read:
    """The long table of the MEDS dataset in `folder`; `site` names all of it, where it is one site of a study."""
    settings = settings.made_with(site=site)
    site = settings.options.site
    if site is None and settings.meds.site_part is None and settings.meds.site_column is None:
        raise InvalidSettings(
            "The map says nowhere what the site of a stay is. Set site_part or site_column under [meds], or, where all "
            "patients are of one site, name it with --site."
        )
    with open_database("duckdb:", memory=memory) as db:
        view_events(db, folder, settings.meds)
        source = map_events(db, settings, site, progress)
        return Read(make_table(db, settings, source, progress, sites=settings.fewest_sites))


def view_events(db: Database, folder: Path, chosen: Meds) -> None:
    """Make the view `meds_events` of the shards in `folder`/data."""
    place = folder / "data"
    if not any(place.glob("**/*.parquet")):
        raise MissingTable(
            f"{folder} holds no shards data/*.parquet. Nothing was written. Name the folder with the subfolder data."
        )
    shards = f"read_parquet({literal(str(place / '**' / '*.parquet'))}, union_by_name = true)"
    there = columns_of(db, shards, place)
    wanted = (*COLUMNS, *((chosen.site_column,) if chosen.site_column else ()))
    lacking = [column for column in wanted if column.lower() not in there]
    if lacking:
        raise MissingColumn(f"The shards in {place} have no column {lacking[0]}. Nothing was written.")
    unit = "CAST(NULL AS VARCHAR)"
    if chosen.site_column is not None:
        unit = f"CAST({quoted(chosen.site_column)} AS VARCHAR)"
    if chosen.site_part is not None:
        unit = f"nullif(split_part(code, '//', {chosen.site_part}), '')"
    db.view("meds_events", f"SELECT {', '.join(COLUMNS)}, {unit} AS unit FROM {shards}", f"the shards in {place}")


RELATIONS = ("stays", "measurements", "held", "doses")


def map_events(
    db: Database, settings: MedsExtraction, site: str | None, progress: Progress = ignore_progress
) -> Source:
    """Make `stays`, `measurements` and `doses` of the view `meds_events`."""
    db.put(
        "meds_options",
        pa.table(
            {
                "site": pa.array([site], pa.string()),
                "longest": [round(settings.meds.longest_hours * HOUR)],
                "look_back": [round(settings.longest_look_back * HOUR)],
                "window_end": [round(settings.window_hours * HOUR)],
            }
        ),
    )
    db.put("meds_map", _map(settings.meds))
    db.make("meds_codes", "SELECT DISTINCT code FROM meds_events")
    progress("events", 0, len(RELATIONS) + 1)
    db.make("events", statement("meds/events"))
    db.make("all_stays", statement("meds/all_stays"))
    flow = _keep(db, settings.meds)
    for number, name in enumerate(RELATIONS, 1):
        progress(name, number, len(RELATIONS) + 1)
        db.make(name, statement(f"meds/{name}"))
    unmatched = _unmatched(db, settings.meds)
    return Source(
        flow,
        _origins(settings.meds),
        left_out=statement("meds/left_out"),
        hint=lambda name: _hint(db, name, unmatched),
        notes=(*_unmatched_notes(unmatched), *_death_notes(db)),
        smallest_site=settings.meds.smallest_site,
    )


OWN_CODES = {("birth", "MEDS_BIRTH"), ("death", "MEDS_DEATH")}
"""Codes of MEDS itself, which a dataset may do without."""


def _unmatched(db: Database, chosen: Meds) -> dict[str, list[str]]:
    """The codes of the map, by what they are used for, that no event has."""
    found = db.arrow(
        "SELECT m.line FROM meds_map AS m WHERE NOT EXISTS (SELECT 1 FROM meds_codes AS d WHERE d.code = m.code "
        "OR (m.prefix AND starts_with(d.code, m.code))) ORDER BY m.line"
    )
    lines, unmatched = list(_lines(chosen)), dict[str, list[str]]()
    for line in found["line"].to_pylist():
        _, _, name, _, code, *_ = lines[line]
        unmatched.setdefault(name, []).append(code)
    return unmatched


def _unmatched_notes(unmatched: dict[str, list[str]]) -> Iterator[str]:
    for name, codes in unmatched.items():
        for code in codes:
            if (name, code) not in OWN_CODES:
                yield f"No event has the code {code}, which the map uses for {name}: is it written as in the dataset?"


def _death_notes(db: Database) -> Iterator[str]:
    dated = db.number("SELECT count(*) FROM stays WHERE death_time <> charted_death")
    if dated:
        yield (
            "Stays with a death at midnight of the day on which step 0 begins, which is a date without a time; the end "
            f"of that day, or of the stay if that is earlier, is taken for the death: {dated:,}."
        )


def _hint(db: Database, name: str, unmatched: dict[str, list[str]]) -> str:
    """What the events hold of a name that has no usable value."""
    counts = db.arrow(
        "SELECT count(*) AS events, count(value) AS numbers, count(CASE WHEN subject_id IN (SELECT subject_id FROM "
        f"stays) THEN 1 END) AS mine FROM events WHERE name = {literal(name)} AND role <> 'stop'"
    ).to_pylist()[0]
    codes = unmatched.get(name, [])
    lost = [f"codes that no event has: {', '.join(codes)}"] if codes else []
    found = f"events: {counts['events']:,}, {counts['mine']:,} of the cohort, {counts['numbers']:,} with a number"
    return "; ".join([*lost, *([found] if counts["events"] else [])])


def _map(chosen: Meds) -> pa.Table:
    """One row a code of the map: what it is used for, in the order of the file."""
    columns = zip(*_lines(chosen), strict=True)
    names = ("role", "use", "name", "thread", "code", "factor", "shift")
    table = pa.table(dict(zip(names, map(list, columns), strict=True)))
    codes = table["code"].to_pylist()
    table = table.set_column(4, "code", pa.array([code.removesuffix("*") for code in codes]))
    table = table.append_column("prefix", pa.array([code.endswith("*") for code in codes]))
    return table.append_column("line", pa.array(range(len(codes))))


def _lines(chosen: Meds) -> Iterator[tuple[str, str, str, int, str, float, float]]:
    """Role, use, name, thread, code, factor, shift. A code has one meaning for each use."""
    for role in ("begin", "leave", "birth", "death"):
        for code in getattr(chosen, role):
            yield role, role, role, -1, code, 1.0, 0.0
    for charted in chosen.charted:
        for code in charted.codes:
            yield "charted", f"charted {charted.name}", charted.name, -1, code, charted.factor, charted.shift
    for thread, dose in enumerate(chosen.doses):
        for code in dose.codes:
            yield dose.kind, "dose", dose.name, thread, code, dose.factor, 0.0
        for code in dose.stop:
            yield "stop", f"stop {thread}", dose.name, thread, code, 1.0, 0.0


def _keep(db: Database, chosen: Meds) -> Flow:
    rules = [("at a site with a name", "site IS NOT NULL")]
    rules += [("the first stay of each person", "place = 1")] if chosen.first_stay else []
    rules += [(f"{chosen.youngest} years or older", f"age >= {chosen.youngest}")] if chosen.youngest else []
    return keep_cohort(db, "all_stays", "stays", rules)


def _origins(chosen: Meds) -> dict[str, str]:
    doses = [code for dose in chosen.doses for code in dose.codes]
    return {
        "site": "the code that begins the stay" if chosen.site_part else chosen.site_column or "given",
        "patient": "subject_id, and the number of the stay",
        "person": "subject_id",
        **{charted.name: ", ".join(charted.codes) for charted in chosen.charted},
        "dose": ", ".join(doses),
        "flow": f"{', '.join(chosen.begin)} to {', '.join(chosen.leave)}",
    }
