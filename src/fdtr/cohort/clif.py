"""Extract trajectories from CLIF tables.

CLIF is the Common Longitudinal ICU data Format: every hospital of its consortium keeps the same tables, in Parquet or
CSV. DuckDB streams them from where they lie.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from fdtr.cohort.clif_files import ONSETS, normal_category, normal_unit, read_onsets, view_tables
from fdtr.cohort.clif_settings import CONVERSIONS, STANDARD, Clif, ClifSettings
from fdtr.cohort.cohort_flow import Flow, keep_cohort
from fdtr.cohort.databases import Database, literal, open_database, read_sql
from fdtr.cohort.time_steps import HOUR, ExtractedTable, Source, make_table
from fdtr.errors import InvalidSettings
from fdtr.progress import Progress, ignore_progress

TABLES = (
    "patient",
    "hospitalization",
    "adt",
    "vitals",
    "labs",
    "medication_admin_continuous",
    "medication_admin_intermittent",
)
TEXT = pa.string()
RELATIONS = ("stays", "measurements", "entries", "infusions", "doses")
"""Made in this order, each by the SQL file of its name."""

VOLUMES = {
    **{("rate", f"ml/{hour}"): 1.0 for hour in ("hour", "hr", "h")},
    **{("rate", f"l/{hour}"): 1000.0 for hour in ("hour", "hr", "h")},
    ("rate", "ml/min"): 60.0,
    ("bolus", "ml"): 1.0,
    ("bolus", "cc"): 1.0,
    ("bolus", "l"): 1000.0,
}
"""Factors from the unit of a dose to ml, or of a rate to ml an hour."""

BEGINS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "unit": (),
    "hospital": (("the first in a hospitalization with a time of admission", "begins = 1"),),
    "onset": (("the first that is not over by the listed onset", "begins = 1"),),
}
"""Further rules of the cohort, by the event at which step 0 begins."""

DEATHS = {
    "expired = 1 AND charted_death IS NULL": "with discharge_category expired and no death_dttm; the end of the "
    "hospitalization is taken for the death",
    "expired = 0 AND charted_death <= discharge_time": "with a death_dttm before the hospitalization ended and another "
    "discharge_category than expired; they count as deaths",
    "death_time <> charted_death": "with a death_dttm at midnight of the day on which step 0 begins, which is a date "
    "without a time; the end of that day, or of the stay if that is earlier, is taken for the death",
}
"""Deaths that the tables record incompletely or with contradictions, and how they are read."""


def extract_clif(
    folder: str | Path,
    settings: ClifSettings,
    *,
    site: str | None = None,
    file_type: str | None = None,
    time_zone: str | None = None,
    onsets: str | Path | None = None,
    memory: str | None = None,
    progress: Progress = ignore_progress,
) -> ExtractedTable:
    r"""The long table of the CLIF tables in `folder`.

    `site` names all of them as one site of a study. `file_type` is "parquet" or "csv". `time_zone` is the zone of times
    that state none. An option that is None is as the settings say, else: no site, parquet, UTC. `onsets` is a CSV list
    of hospitalizations with the onset at which step 0 begins; then only listed hospitalizations are in the table.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from fdtr.cohort import ClifSettings, extract_clif
    >>> dose = "hospitalization_id,med_order_id,med_name,med_category,admin_dttm,mar_action_category,med_dose,"
    >>> tables = {
    ...     "patient": "patient_id,death_dttm\np1,",
    ...     "hospitalization": "hospitalization_id,patient_id,admission_dttm,discharge_dttm,age_at_admission,"
    ...     "discharge_category\nh1,p1,2030-05-01 00:00:00,2030-05-03 00:00:00,60,Home",
    ...     "adt": "hospitalization_id,hospital_id,in_dttm,out_dttm,location_name,location_category\n"
    ...     "h1,north,2030-05-01 00:00:00,2030-05-03 00:00:00,MICU,icu",
    ...     "vitals": "hospitalization_id,recorded_dttm,vital_category,vital_value\nh1,2030-05-01 00:00:00,sbp,95",
    ...     "labs": "hospitalization_id,lab_collect_dttm,lab_category,lab_value_numeric,reference_unit\n"
    ...     "h1,2030-05-01 00:00:00,lactate,3.0,mmol/L",
    ...     "medication_admin_continuous": f"{dose}med_dose_unit,med_route_name\n",
    ...     "medication_admin_intermittent": f"{dose}med_dose_unit,med_route_name\n"
    ...     "h1,1,saline,sodium_chloride,2030-05-01 01:00:00,given,500,mL,iv",
    ... }
    >>> sbp = {"name": "sbp", "meaning": "pressure", "unit": "mmHg", "plausible": [20, 300], "range": [60, 200]}
    >>> settings = {"steps": 2, "covariates": [sbp], "site_covariates": [], "may_be_absent": ["colloid"]}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name, text in tables.items():
    ...         _ = (Path(folder) / f"clif_{name}.csv").write_text(text)
    ...     extracted = extract_clif(folder, ClifSettings.model_validate(settings), site="north", file_type="csv")
    >>> for row in extracted.table.select(["patient", "step", "sbp", "dose", "action"]).to_pylist():
    ...     print(*row.values())
    h1-1 0 95.0 500.0 2
    h1-1 1 95.0 0.0 0
    """
    folder = Path(folder)
    file_type = file_type or settings.options.file_type or "parquet"
    time_zone = time_zone or settings.options.time_zone or "UTC"
    settings = settings.with_options(site=site, file_type=file_type, time_zone=time_zone)
    if onsets is not None:
        settings = settings.model_copy(update={"time_zero": "onset"})
    elif settings.time_zero == "onset":
        raise InvalidSettings(
            'The settings have time_zero = "onset", and CLIF tables hold no onset. Nothing was written. Give a list '
            'of hospitalizations and onsets with --onsets FILE, or set time_zero = "admission".'
        )
    with open_database("duckdb:", memory=memory) as db:
        diagnoses = ("hospital_diagnosis",) if settings.clif.diagnoses else ()
        view_tables(db, folder, (*TABLES, *diagnoses), file_type, time_zone)
        db.put("clif_onsets", read_onsets(Path(onsets), time_zone) if onsets is not None else ONSETS.empty_table())
        return make_table(db, settings, _map_tables(db, settings, progress), progress)


def _map_tables(db: Database, settings: ClifSettings, progress: Progress) -> Source:
    """Make `stays`, `measurements` and `doses` from the views clif_NAME."""
    _put_choices(db, settings)
    db.make("icu_stays", read_sql("clif/icu_stays"))
    flow = _keep_cohort(db, settings)
    for number, relation in enumerate(RELATIONS):
        progress(relation, number, len(RELATIONS))
        db.make(relation, read_sql(f"clif/{relation}"))
    return Source(
        flow,
        _origins(settings),
        left_out=read_sql("clif/left_out"),
        hint=lambda name: _hint(db, settings.clif, name),
        notes=tuple(_notes(db, settings)),
        smallest_site=settings.clif.smallest_site,
    )


def _keep_cohort(db: Database, settings: ClifSettings) -> Flow:
    names = settings.clif
    rules = [
        ("with a row in hospitalization", "patient_id IS NOT NULL"),
        ("with a beginning and a later end in adt", "timed = 1"),
        ("in a unit with a name", "site IS NOT NULL"),
        *BEGINS[settings.begin],
    ]
    rules += [("the first stay of each person", "place = 1")] if names.first_stay else []
    rules += [(f"{names.youngest} years or older", f"age >= {names.youngest}")]
    rules += [("with a diagnosis of the settings", "listed = 1")] if names.diagnoses else []
    return keep_cohort(db, "icu_stays", f"stays ({', '.join(names.locations)})", rules)


def _notes(db: Database, settings: ClifSettings) -> Iterator[str]:
    for condition, description in DEATHS.items():
        stays = db.number(f"SELECT count(*) FROM stays WHERE {condition}")
        if stays:
            yield f"Stays {description}: {stays:,}."
    known = "SELECT hospitalization_id FROM clif_adt"
    unknown = db.number(f"SELECT count(*) FROM clif_onsets WHERE hospitalization_id NOT IN ({known})")
    if settings.begin == "onset" and unknown:
        yield f"Lines of the list of onsets whose hospitalization_id stands nowhere in adt: {unknown:,}."


def _hint(db: Database, names: Clif, name: str) -> str:
    """What the tables hold of a `name` that has no usable value."""
    if name in names.vitals:
        return _count_rows(db, "vitals", "vital_category", "vital_value", [names.vitals[name]])
    if name in names.labs:
        return _count_rows(db, "labs", "lab_category", "lab_value_numeric", [names.labs[name]])
    categories = [category for category, kind in names.fluids.items() if kind == name]
    if not categories:
        return "[clif.fluids] names no med_category of this kind"
    tables = ("medication_admin_continuous", "medication_admin_intermittent")
    return "; ".join(_count_rows(db, table, "med_category", "med_dose", categories) for table in tables)


def _count_rows(db: Database, table: str, column: str, value: str, categories: list[str]) -> str:
    listed = ", ".join(literal(normal_category(category)) for category in categories)
    of_cohort = "hospitalization_id IN (SELECT hospitalization_id FROM stays)"
    counts = db.arrow(
        f"SELECT count(*) AS rows, count({value}) AS numbers, count(CASE WHEN {of_cohort} THEN 1 END) AS of_cohort "
        f"FROM clif_{table} WHERE {column} IN ({listed})"
    ).to_pylist()[0]
    what = f"{table} with {column} {' or '.join(categories)}"
    if not counts["rows"]:
        return f"no row of {what}"
    if not counts["of_cohort"]:
        return (
            f"rows of {what}: {counts['rows']:,}, none with a hospitalization_id of the cohort; are ids written alike "
            "in all tables?"
        )
    return f"rows of {what}: {counts['of_cohort']:,} in the cohort, and {counts['numbers']:,} of all have a number"


def _put_choices(db: Database, settings: ClifSettings) -> None:
    """Load the settings as small relations, which the SQL files join with."""
    names = settings.clif
    options = {
        "site": pa.array([settings.options.site], TEXT),
        "unit": [names.unit],
        "gap": [round(names.gap_hours * HOUR)],
        "begin": [settings.begin],
        "delay": [round(names.delay_hours * HOUR)],
        "longest": [round(names.longest_hours * HOUR)],
        "look_back": [round(settings.longest_look_back * HOUR)],
        "window_end": [round(settings.window_hours * HOUR)],
    }
    db.put("clif_options", pa.table(options))
    wanted = {quantity.name for quantity in settings.charted}
    sources = {"vitals": names.vitals, "labs": names.labs}
    charted = [
        (name, normal_category(category), source)
        for source, categories in sources.items()
        for name, category in categories.items()
        if name in wanted
    ]
    _put(db, "clif_charted", {"name": TEXT, "category": TEXT, "source": TEXT}, charted)
    places = {normal_category(category): 0 for category in names.trips}
    places |= {normal_category(category): 1 for category in names.locations}
    _put(db, "clif_locations", {"category": TEXT, "counted": pa.int64()}, [*places.items()])
    # Continuous albumin has a category of its own in CLIF, and is the same product.
    categories = {category: normal_category(category) for category in _counted_fluids(settings)}
    fluids = [(plain, names.fluids[c], plain.removesuffix("_infusion")) for c, plain in categories.items()]
    _put(db, "clif_fluids", {"category": TEXT, "name": TEXT, "product": TEXT}, fluids)
    _put(db, "clif_carriers", {"words": TEXT}, [(words.lower(),) for words in names.carriers])
    codes = [(code.upper().replace(".", ""),) for code in names.diagnoses]
    _put(db, "clif_codes", {"code": TEXT}, codes)
    factors = [(*unit, factor) for unit, factor in _unit_factors(settings).items()]
    _put(db, "clif_units", {"category": TEXT, "unit": TEXT, "factor": pa.float64()}, factors)
    volumes = [(*unit, factor) for unit, factor in VOLUMES.items()]
    _put(db, "clif_volumes", {"kind": TEXT, "unit": TEXT, "ml": pa.float64()}, volumes)
    if not names.diagnoses:
        _put(db, "clif_hospital_diagnosis", {"hospitalization_id": TEXT, "diagnosis_code": TEXT}, [])


def _put(db: Database, name: str, columns: Mapping[str, pa.DataType], rows: Sequence[tuple[Any, ...]]) -> None:
    arrays = [pa.array([row[i] for row in rows], kind) for i, kind in enumerate(columns.values())]
    db.put(name, pa.table(arrays, names=list(columns)))


def _unit_factors(settings: ClifSettings) -> dict[tuple[str, str], float]:
    """Factor from each category and unit to the unit of the settings, which itself has the factor 1."""
    labs = settings.clif.labs
    own = {normal_category(labs[q.name]): normal_unit(q.unit) for q in settings.charted if q.name in labs}
    factors: dict[tuple[str, str], float] = {}
    for category, units in settings.clif.conversions.items():
        chosen = {normal_unit(unit): factor for unit, factor in units.items()}
        usual = {normal_unit(unit): factor for unit, factor in CONVERSIONS.get(category, {}).items()}
        if category in STANDARD:
            usual[normal_unit(STANDARD[category])] = 1.0
            chosen = _factors_to(own.get(normal_category(category), ""), chosen, usual)
        factors |= {(normal_category(category), unit): factor for unit, factor in chosen.items()}
    return factors | dict.fromkeys(own.items(), 1.0)


def _factors_to(own: str, chosen: Mapping[str, float], usual: Mapping[str, float]) -> dict[str, float]:
    """Factors to the unit `own`: those a file changed as they are, the `usual` ones by way of the standard unit.

    >>> _factors_to("mg/dl", {"mg/dl": 0.125}, {"mg/dl": 0.125, "mmol/l": 1.0})
    {'mg/dl': 1.0, 'mmol/l': 8.0}
    """
    changed = {unit: factor for unit, factor in chosen.items() if usual.get(unit) != factor}
    if own not in usual:
        return changed  # the usual factors lead to another unit
    return {unit: factor / usual[own] for unit, factor in usual.items()} | changed


def _counted_fluids(settings: ClifSettings) -> list[str]:
    return [category for category, kind in settings.clif.fluids.items() if kind in settings.dose.names]


def _origins(settings: ClifSettings) -> dict[str, str]:
    names = settings.clif
    return {
        "site": "given" if settings.options.site is not None else f"adt.{names.unit} of the first unit",
        "patient": "hospitalization.hospitalization_id, and the number of the stay in it",
        "person": "patient.patient_id",
        **{name: f"vitals {category}" for name, category in names.vitals.items()},
        **{name: f"labs {category}" for name, category in names.labs.items()},
        "dose": f"medication_admin_continuous and _intermittent: {', '.join(_counted_fluids(settings))}",
        "flow": "adt: in_dttm to out_dttm",
        "no_icu": "adt.location_category",
    }
