"""Extract trajectories from MEDS event shards, with a user's map of codes.

MEDS is the Medical Event Data Standard: one long table of events (subject_id, time, code, numeric_value) in Parquet
shards, into which public programs turn MIMIC-IV, eICU, OMOP, FHIR and others. Codes are free, so the user says what
they mean.
"""

import tomllib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import pyarrow as pa
from pydantic import Field, model_validator

from fdtr.cohort.cohort_flow import Flow, keep_cohort
from fdtr.cohort.databases import Database, file_columns, literal, open_database, quoted, read_sql
from fdtr.cohort.extraction_settings import (
    SITE_COVARIATES,
    ExtractionSettings,
    Hours,
    Name,
    SiteCovariate,
    SourceName,
)
from fdtr.cohort.settings_toml import Setting
from fdtr.cohort.time_steps import HOUR, ExtractedTable, Source, make_table
from fdtr.errors import InvalidSettings, UnsuitableTables
from fdtr.progress import Progress, ignore_progress
from fdtr.study.sections import Flag, Number, Text, Whole

Codes = Annotated[
    tuple[Text, ...],
    Field(min_length=1, description="Codes as they stand; one that ends in * means all that begin so."),
]


class ChartedCodes(Setting):
    """Events that chart a covariate, or the outcome."""

    name: Annotated[Name, Field(description="The covariate, or the outcome.")]
    codes: Codes
    factor: Annotated[Number, Field(description="The number is multiplied by this, …")] = 1.0
    shift: Annotated[Number, Field(description="… and this is added, to get the unit of the settings.")] = 0.0


class DoseCodes(Setting):
    """Events that give a dose: its ml at once, or a rate in ml an hour that holds until the next event."""

    name: Annotated[Name, Field(description="The kind of dose, which [dose] names.")]
    codes: Codes
    kind: Annotated[Literal["bolus", "rate"], Field(description="ml at once, or ml an hour until the next event.")] = (
        "bolus"
    )
    factor: Annotated[Number, Field(gt=0, description="Factor from the number to ml, or to ml an hour.")] = 1.0
    stop: Annotated[tuple[Text, ...], Field(description="Codes that stop a rate.")] = ()

    @model_validator(mode="after")
    def _check_stop(self) -> Self:
        if self.stop and self.kind == "bolus":
            raise ValueError("a bolus is over at once: stop belongs to a rate")
        return self


class Meds(Setting):
    """What the codes of a MEDS dataset mean."""

    begin: Annotated[Codes, Field(description="Events that begin a stay: time zero.")]
    leave: Annotated[tuple[Text, ...], Field(description="Events that end a stay.")] = ()
    birth: Annotated[tuple[Text, ...], Field(description="Events that tell when a person was born.")] = ("MEDS_BIRTH",)
    death: Annotated[tuple[Text, ...], Field(description="Events that tell when a person died.")] = ("MEDS_DEATH",)
    site_part: Annotated[
        Whole | None, Field(ge=1, description="Number of the part of a begin code, between //, that names the site.")
    ] = None
    site_column: Annotated[Text | None, Field(description="The column of the shards that names the site.")] = None
    youngest: Annotated[
        Whole, Field(ge=0, description="Smallest age at time zero, in years; 0: any age, known or not.")
    ] = 18
    first_stay: Annotated[Flag, Field(description="Only the first stay of each person.")] = True
    smallest_site: Annotated[Whole, Field(ge=1, description="Sites with fewer stays leave the cohort.")] = 1
    longest_hours: Annotated[Hours, Field(description="Longest time that a rate holds without a new event.")] = 24.0
    charted: Annotated[
        tuple[ChartedCodes, ...], Field(min_length=1, description="Events that chart a covariate, or the outcome.")
    ]
    doses: Annotated[tuple[DoseCodes, ...], Field(min_length=1, description="Events that give a dose.")]

    @model_validator(mode="after")
    def _check_site(self) -> Self:
        if self.site_part is not None and self.site_column is not None:
            raise ValueError("site_part and site_column both name the site: give one of them")
        return self


class MedsSettings(ExtractionSettings):
    """All settings of an extraction from MEDS events. The section [meds] has no defaults, because codes are free."""

    SOURCE: ClassVar[SourceName] = "meds"
    KNOWN_SITE_COVARIATES: ClassVar[tuple[str, ...]] = ("flow",)

    name: Annotated[Text, Field(description="Name of the drafted study.")] = "meds-fluids"
    # The map decides what begins a stay: an admission or an onset.
    time_zero: Annotated[
        Literal["onset", "admission"], Field(description="For the dictionary: what [meds] begin stands for.")
    ] = "admission"
    site_covariates: Annotated[
        tuple[SiteCovariate, ...], Field(description="What is the same for all stays of a site: flow.")
    ] = tuple(covariate for covariate in SITE_COVARIATES if covariate.name == "flow")
    meds: Annotated[Meds, Field(description="What the codes mean.")]

    @model_validator(mode="after")
    def _check_meds(self) -> Self:
        coded = {charted.name for charted in self.meds.charted}
        uncoded = [quantity.name for quantity in self.charted if quantity.name not in coded]
        if uncoded:
            raise ValueError(f"[[meds.charted]] has no codes for {uncoded[0]!r}")
        unknown = [dose.name for dose in self.meds.doses if dose.name not in self.dose.names]
        if unknown:
            raise ValueError(f"[[meds.doses]] has the kind {unknown[0]!r}, which [dose] names does not add up")
        if self.site_covariates and not self.meds.leave:
            raise ValueError(
                "flow is a share of patients' time, which needs events that end a stay: add them as [meds] leave, or "
                "write site_covariates = []"
            )
        return self

    @property
    def zero(self) -> str:
        """When step 0 begins, in words."""
        return f"{self.time_zero}: the event that begins the stay"


def example_settings() -> MedsSettings:
    """Valid settings with an example map, which the user replaces."""
    text = files("fdtr.cohort").joinpath("templates", "meds_map.toml").read_text(encoding="utf-8")
    return MedsSettings.model_validate(tomllib.loads(text))


COLUMNS = ("subject_id", "time", "code", "numeric_value")


def extract_meds(
    folder: str | Path,
    settings: MedsSettings,
    *,
    site: str | None = None,
    memory: str | None = None,
    progress: Progress = ignore_progress,
) -> ExtractedTable:
    """The long table of the MEDS dataset in `folder`; `site` names all of it as one site of a study."""
    folder, settings = Path(folder), settings.with_options(site=site)
    if settings.options.site is None and settings.meds.site_part is None and settings.meds.site_column is None:
        raise InvalidSettings(
            "The map says nowhere what the site of a stay is. Set site_part or site_column under [meds], or, where all "
            "patients are of one site, name it with --site."
        )
    with open_database("duckdb:", memory=memory) as db:
        _view_events(db, folder, settings.meds)
        return make_table(db, settings, _map_events(db, settings, progress), progress)


def _view_events(db: Database, folder: Path, code_map: Meds) -> None:
    """Make the view `meds_events` of the shards in `folder`/data."""
    data = folder / "data"
    if not any(data.glob("**/*.parquet")):
        raise UnsuitableTables(
            f"{folder} holds no shards data/*.parquet. Nothing was written. Name the folder with the subfolder data."
        )
    shards = f"read_parquet({literal(str(data / '**' / '*.parquet'))}, union_by_name = true)"
    present = file_columns(db, shards, data)
    wanted = (*COLUMNS, *((code_map.site_column,) if code_map.site_column else ()))
    lacking = [column for column in wanted if column.lower() not in present]
    if lacking:
        raise UnsuitableTables(f"The shards in {data} have no column {lacking[0]}. Nothing was written.")
    unit = "CAST(NULL AS VARCHAR)"
    if code_map.site_column is not None:
        unit = f"CAST({quoted(code_map.site_column)} AS VARCHAR)"
    if code_map.site_part is not None:
        unit = f"nullif(split_part(code, '//', {code_map.site_part}), '')"
    db.view("meds_events", f"SELECT {', '.join(COLUMNS)}, {unit} AS unit FROM {shards}", f"the shards in {data}")


RELATIONS = ("stays", "measurements", "infusions", "doses")
"""Made in this order, each by the SQL file of its name."""


def _map_events(db: Database, settings: MedsSettings, progress: Progress) -> Source:
    """Make `stays`, `measurements` and `doses` from the view `meds_events`."""
    options = {
        "site": pa.array([settings.options.site], pa.string()),
        "longest": [round(settings.meds.longest_hours * HOUR)],
        "look_back": [round(settings.longest_look_back * HOUR)],
        "window_end": [round(settings.window_hours * HOUR)],
    }
    db.put("meds_options", pa.table(options))
    db.put("meds_map", _map_table(settings.meds))
    db.make("meds_codes", "SELECT DISTINCT code FROM meds_events")
    progress("events", 0, len(RELATIONS) + 1)
    db.make("events", read_sql("meds/events"))
    db.make("all_stays", read_sql("meds/all_stays"))
    flow = _keep_cohort(db, settings.meds)
    for number, relation in enumerate(RELATIONS, 1):
        progress(relation, number, len(RELATIONS) + 1)
        db.make(relation, read_sql(f"meds/{relation}"))
    unmatched = _unmatched(db)
    return Source(
        flow,
        _origins(settings.meds),
        left_out=read_sql("meds/left_out"),
        hint=lambda name: _hint(db, name, unmatched),
        notes=(*_unmatched_notes(unmatched), *_death_notes(db)),
        smallest_site=settings.meds.smallest_site,
    )


OWN_CODES = {("birth", "MEDS_BIRTH"), ("death", "MEDS_DEATH")}
"""Codes that MEDS itself defines; a dataset need not have them."""


def _unmatched(db: Database) -> dict[str, list[str]]:
    """Codes of the map that no event has, by the name that they are used for."""
    rows = db.arrow(
        "SELECT m.name, CASE WHEN m.prefix THEN m.code || '*' ELSE m.code END AS code FROM meds_map AS m "
        "WHERE NOT EXISTS (SELECT 1 FROM meds_codes AS d WHERE d.code = m.code OR (m.prefix AND "
        "starts_with(d.code, m.code))) ORDER BY m.line"
    ).to_pylist()
    unmatched: dict[str, list[str]] = {}
    for row in rows:
        unmatched.setdefault(row["name"], []).append(row["code"])
    return unmatched


def _unmatched_notes(unmatched: dict[str, list[str]]) -> Iterator[str]:
    for name, codes in unmatched.items():
        for code in codes:
            if (name, code) not in OWN_CODES:
                yield f"No event has the code {code}, which the map uses for {name}: is it written as in the dataset?"


def _death_notes(db: Database) -> Iterator[str]:
    stays = db.number("SELECT count(*) FROM stays WHERE death_time <> charted_death")
    if stays:
        yield (
            "Stays with a death at midnight of the day on which step 0 begins, which is a date without a time; the end "
            f"of that day, or of the stay if that is earlier, is taken for the death: {stays:,}."
        )


def _hint(db: Database, name: str, unmatched: dict[str, list[str]]) -> str:
    """What the events hold of a `name` that has no usable value."""
    counts = db.arrow(
        "SELECT count(*) AS events, count(value) AS numbers, count(CASE WHEN subject_id IN (SELECT subject_id FROM "
        f"stays) THEN 1 END) AS of_cohort FROM events WHERE name = {literal(name)} AND role <> 'stop'"
    ).to_pylist()[0]
    parts = [f"codes that no event has: {', '.join(unmatched[name])}"] if name in unmatched else []
    if counts["events"]:
        events, of_cohort, numbers = (f"{counts[key]:,}" for key in ("events", "of_cohort", "numbers"))
        parts.append(f"events: {events}, {of_cohort} of the cohort, {numbers} with a number")
    return "; ".join(parts)


def _map_table(code_map: Meds) -> pa.Table:
    """One row a code of the map, in the order of the file: what the code is used for."""
    roles, uses, names, threads, codes, factors, shifts = map(list, zip(*_lines(code_map), strict=True))
    columns = {"role": roles, "use": uses, "name": names, "thread": threads, "factor": factors, "shift": shifts}
    plain, prefix = [code.removesuffix("*") for code in codes], [code.endswith("*") for code in codes]
    return pa.table({**columns, "code": plain, "prefix": prefix, "line": list(range(len(codes)))})


def _lines(code_map: Meds) -> Iterator[tuple[str, str, str, int, str, float, float]]:
    """Role, use, name, thread, code, factor, shift. A code has one meaning for each use."""
    for role in ("begin", "leave", "birth", "death"):
        for code in getattr(code_map, role):
            yield role, role, role, -1, code, 1.0, 0.0
    for charted in code_map.charted:
        for code in charted.codes:
            yield "charted", f"charted {charted.name}", charted.name, -1, code, charted.factor, charted.shift
    for thread, dose in enumerate(code_map.doses):
        for code in dose.codes:
            yield dose.kind, "dose", dose.name, thread, code, dose.factor, 0.0
        for code in dose.stop:
            yield "stop", f"stop {thread}", dose.name, thread, code, 1.0, 0.0


def _keep_cohort(db: Database, code_map: Meds) -> Flow:
    rules = [("at a site with a name", "site IS NOT NULL")]
    rules += [("the first stay of each person", "place = 1")] if code_map.first_stay else []
    rules += [(f"{code_map.youngest} years or older", f"age >= {code_map.youngest}")] if code_map.youngest else []
    return keep_cohort(db, "all_stays", "stays", rules)


def _origins(code_map: Meds) -> dict[str, str]:
    doses = [code for dose in code_map.doses for code in dose.codes]
    return {
        "site": "the code that begins the stay" if code_map.site_part else code_map.site_column or "given",
        "patient": "subject_id, and the number of the stay",
        "person": "subject_id",
        **{charted.name: ", ".join(charted.codes) for charted in code_map.charted},
        "dose": ", ".join(doses),
        "flow": f"{', '.join(code_map.begin)} to {', '.join(code_map.leave)}",
    }
