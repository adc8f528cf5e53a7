"""From CLIF tables, as every hospital of that consortium keeps them, to the three relations of an extraction.

CLIF is the Common Longitudinal ICU data Format: the same tables at each site, in Parquet or CSV. They are read where
they lie, in streams, with DuckDB.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from fdtr.cohort.clif_files import view_tables
from fdtr.cohort.clif_onsets import NO_ONSETS, read_onsets
from fdtr.cohort.clif_settings import CONVERSIONS, STANDARD, Clif, ClifExtraction
from fdtr.cohort.database import Database
from fdtr.cohort.dialects import statement
from fdtr.cohort.engines import MEMORY, open_database
from fdtr.cohort.flow import Flow
from fdtr.cohort.rules import keep_cohort
from fdtr.cohort.sources import Read, literal
from fdtr.cohort.steps import HOUR, Source, make_table
from fdtr.errors import InvalidSettings
from fdtr.progress import Progress, ignore_progress

VOLUMES = {
    **{("rate", f"ml/{hour}"): 1.0 for hour in ("hour", "hr", "h")},
    **{("rate", f"l/{hour}"): 1000.0 for hour in ("hour", "hr", "h")},
    ("rate", "ml/min"): 60.0,
    ("bolus", "ml"): 1.0,
    ("bolus", "cc"): 1.0,
    ("bolus", "l"): 1000.0,
}
"""What a dose in each unit is multiplied by, to be in ml, or in ml an hour."""

CODED_LATER = "Diagnoses are coded at discharge, so that a stay may be eligible by what came after time zero."
ALIVE_IN_THE_UNIT = "Who died before reaching the unit is not in the table, though step 0 begins with the hospital."
LISTED_LATER = "Whether the list of onsets looks beyond time zero is for its maker to say."


def looks_ahead(settings: ClifExtraction) -> str:
    """How who is eligible is known later than a trial would know it; empty where it is not.

    >>> looks_ahead(ClifExtraction())
    ''
    """
    later = {"unit": "", "hospital": ALIVE_IN_THE_UNIT, "onset": LISTED_LATER}[settings.begin]
    return " ".join(text for text in (CODED_LATER if settings.clif.diagnoses else "", later) if text)


TABLES = (
    "patient",
    "hospitalization",
    "adt",
    "vitals",
    "labs",
    "medication_admin_continuous",
    "medication_admin_intermittent",
)


def extract(
    folder: Path,
    settings: ClifExtraction,
    *,
    site: str | None = None,
    file_type: str | None = None,
    zone: str | None = None,
    onsets: Path | None = None,
    memory: str = MEMORY,
    progress: Progress = ignore_progress,
) -> Read:
    """The long table of the CLIF tables in `folder`; `site` names them all, where they are one site of a study.

    What is None is as the settings say, else no site, parquet and UTC. `onsets` is a list of hospitalizations and when
    their step 0 begins; only these are in the table then.
    """
    kind, local = file_type or settings.options.file_type or "parquet", zone or settings.options.time_zone or "UTC"
    settings = settings.made_with(site=site, file_type=kind, time_zone=local)
    if onsets is not None:
        settings = settings.model_copy(update={"time_zero": "onset"})
    elif settings.time_zero == "onset":
        raise InvalidSettings(
            'The settings have time_zero = "onset", and CLIF tables hold no onset. Nothing was written. Give a list '
            'of hospitalizations and onsets with --onsets FILE, or set time_zero = "admission".'
        )
    with open_database("duckdb:", memory=memory) as db:
        diagnoses = ("hospital_diagnosis",) if settings.clif.diagnoses else ()
        view_tables(db, folder, (*TABLES, *diagnoses), kind, local)
        db.put("clif_onsets", read_onsets(onsets, local) if onsets is not None else NO_ONSETS)
        source = map_tables(db, settings, settings.options.site, progress)
        return Read(make_table(db, settings, source, progress, sites=settings.fewest_sites))


RELATIONS = ("stays", "measurements", "entries", "held", "doses")


def map_tables(
    db: Database, settings: ClifExtraction, site: str | None, progress: Progress = ignore_progress
) -> Source:
    """Make `stays`, `measurements` and `doses` of the views clif_…."""
    _put_choices(db, settings, site)
    db.make("icu_stays", statement("clif/icu_stays"))
    flow = _keep(db, settings)
    for number, name in enumerate(RELATIONS):
        progress(name, number, len(RELATIONS))
        db.make(name, statement(f"clif/{name}"))
    return Source(
        flow,
        _origins(settings, site),
        left_out=statement("clif/left_out"),
        hint=lambda name: _hint(db, settings.clif, name),
        notes=tuple(_notes(db, settings)),
        smallest_site=settings.clif.smallest_site,
    )


DEATHS = {
    "expired = 1 AND charted_death IS NULL": "with discharge_category expired and no death_dttm; the end of the "
    "hospitalization is taken for the death",
    "expired = 0 AND charted_death <= discharge_time": "with a death_dttm before the hospitalization ended and another "
    "discharge_category than expired; they count as deaths",
    "death_time <> charted_death": "with a death_dttm at midnight of the day on which step 0 begins, which is a date "
    "without a time; the end of that day, or of the stay if that is earlier, is taken for the death",
}
"""Deaths that the tables tell of in contradictory ways, or not wholly, and what is made of them."""


def _notes(db: Database, settings: ClifExtraction) -> Iterator[str]:
    for condition, what in DEATHS.items():
        number = db.number(f"SELECT count(*) FROM stays WHERE {condition}")
        if number:
            yield f"Stays {what}: {number:,}."
    strange = "SELECT hospitalization_id FROM clif_adt"
    lost = db.number(f"SELECT count(*) FROM clif_onsets WHERE hospitalization_id NOT IN ({strange})")
    if settings.begin == "onset" and lost:
        yield f"Lines of the list of onsets whose hospitalization_id stands nowhere in adt: {lost:,}."


def _hint(db: Database, chosen: Clif, name: str) -> str:
    """What the tables hold of a name that has no usable value."""
    if name in chosen.vitals:
        return _held(db, "vitals", "vital_category", "vital_value", [chosen.vitals[name]])
    if name in chosen.labs:
        return _held(db, "labs", "lab_category", "lab_value_numeric", [chosen.labs[name]])
    categories = [category for category, kind in chosen.fluids.items() if kind == name]
    if not categories:
        return "[clif.fluids] names no med_category of this kind"
    tables = ("medication_admin_continuous", "medication_admin_intermittent")
    return "; ".join(_held(db, table, "med_category", "med_dose", categories) for table in tables)


def _held(db: Database, table: str, column: str, value: str, categories: list[str]) -> str:
    listed = ", ".join(literal(_plain(one)) for one in categories)
    cohort = "hospitalization_id IN (SELECT hospitalization_id FROM stays)"
    counts = db.arrow(
        f"SELECT count(*) AS rows, count({value}) AS numbers, count(CASE WHEN {cohort} THEN 1 END) AS mine "
        f"FROM clif_{table} WHERE {column} IN ({listed})"
    ).to_pylist()[0]
    what = f"{table} with {column} {' or '.join(categories)}"
    if not counts["rows"]:
        return f"no row of {what}"
    if not counts["mine"]:
        return (
            f"rows of {what}: {counts['rows']:,}, none with a hospitalization_id of the cohort; are ids written alike "
            "in all tables?"
        )
    return f"rows of {what}: {counts['mine']:,} in the cohort, and {counts['numbers']:,} of all have a number"


def _put_choices(db: Database, settings: ClifExtraction, site: str | None) -> None:
    """The settings as small relations, which the SQL files join with."""
    chosen = settings.clif
    db.put(
        "clif_options",
        pa.table(
            {
                "site": pa.array([site], pa.string()),
                "unit": [chosen.unit],
                "gap": [round(chosen.gap_hours * HOUR)],
                "begin": [settings.begin],
                "delay": [round(chosen.delay_hours * HOUR)],
                "longest": [round(chosen.longest_hours * HOUR)],
                "look_back": [round(settings.longest_look_back * HOUR)],
                "window_end": [round(settings.window_hours * HOUR)],
            }
        ),
    )
    charted = [(name, category, "vitals") for name, category in chosen.vitals.items()]
    charted += [(name, category, "labs") for name, category in chosen.labs.items()]
    wanted = {one.name for one in settings.charted}
    charted = [(name, _plain(category), table) for name, category, table in charted if name in wanted]
    _put(db, "clif_charted", ("name", "category", "source"), charted)
    places = {_plain(one): 0 for one in chosen.trips} | {_plain(one): 1 for one in chosen.locations}
    db.put("clif_locations", pa.table({"category": [*places], "counted": [*places.values()]}))
    # Continuous albumin has a category of its own in CLIF, and is the same product.
    fluids = [(_plain(one), chosen.fluids[one], _plain(one).removesuffix("_infusion")) for one in _counted(settings)]
    _put(db, "clif_fluids", ("category", "name", "product"), fluids)
    _put(db, "clif_carriers", ("words",), [(one.lower(),) for one in chosen.carriers])
    _put(db, "clif_codes", ("code",), [(one.upper().replace(".", ""),) for one in chosen.diagnoses])
    db.put("clif_units", _units(settings))
    volumes = pa.table({"kind": [k for k, _ in VOLUMES], "unit": [u for _, u in VOLUMES], "ml": [*VOLUMES.values()]})
    db.put("clif_volumes", volumes)
    if not chosen.diagnoses:
        _put(db, "clif_hospital_diagnosis", ("hospitalization_id", "diagnosis_code"), [])


def _units(settings: ClifExtraction) -> pa.Table:
    """What a result of each category and unit is multiplied by; the unit of the settings itself by 1."""
    chosen = settings.clif
    own = {_plain(chosen.labs[one.name]): _unspaced(one.unit) for one in settings.charted if one.name in chosen.labs}
    factors: dict[tuple[str, str], float] = {}
    for category, units in chosen.conversions.items():
        given = {_unspaced(unit): factor for unit, factor in units.items()}
        usual = {_unspaced(unit): factor for unit, factor in CONVERSIONS.get(category, {}).items()}
        if category in STANDARD:
            given = _towards(own.get(_plain(category), ""), given, {**usual, _unspaced(STANDARD[category]): 1.0})
        factors |= {(_plain(category), unit): factor for unit, factor in given.items()}
    factors |= dict.fromkeys(own.items(), 1.0)
    categories, units_of = zip(*factors, strict=True) if factors else ((), ())
    kinds = (
        pa.array(categories, pa.string()),
        pa.array(units_of, pa.string()),
        pa.array(factors.values(), pa.float64()),
    )
    return pa.table(dict(zip(("category", "unit", "factor"), kinds, strict=True)))


def _towards(own: str, given: Mapping[str, float], usual: Mapping[str, float]) -> dict[str, float]:
    """Factors to the unit `own`: those of a file as they are `given`, the `usual` ones by way of the standard unit.

    >>> _towards("mg/dl", {"mg/dl": 0.125}, {"mg/dl": 0.125, "mmol/l": 1.0})
    {'mg/dl': 1.0, 'mmol/l': 8.0}
    """
    changed = {unit: factor for unit, factor in given.items() if usual.get(unit) != factor}
    if own not in usual:
        return changed  # the usual factors lead to another unit
    return {unit: factor / usual[own] for unit, factor in usual.items()} | changed


def _unspaced(unit: str) -> str:
    return unit.lower().replace(" ", "")


def _put(db: Database, name: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    db.put(name, pa.table({column: pa.array([r[i] for r in rows], pa.string()) for i, column in enumerate(columns)}))


def _plain(category: str) -> str:
    return category.strip().lower().replace(" ", "_")


BEGINS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "unit": (),
    "hospital": (("the first in a hospitalization with a time of admission", "begins = 1"),),
    "onset": (("the first that is not over by the listed onset", "begins = 1"),),
}
"""What is asked of a stay, by what step 0 begins with."""


def _keep(db: Database, settings: ClifExtraction) -> Flow:
    chosen = settings.clif
    rules = [
        ("with a row in hospitalization", "patient_id IS NOT NULL"),
        ("with a beginning and a later end in adt", "timed = 1"),
        ("in a unit with a name", "site IS NOT NULL"),
        *BEGINS[settings.begin],
    ]
    rules += [("the first stay of each person", "place = 1")] if chosen.first_stay else []
    rules += [(f"{chosen.youngest} years or older", f"age >= {chosen.youngest}")]
    rules += [("with a diagnosis of the settings", "listed = 1")] if chosen.diagnoses else []
    return keep_cohort(db, "icu_stays", f"stays ({', '.join(chosen.locations)})", rules)


def _counted(settings: ClifExtraction) -> list[str]:
    return [one for one, kind in settings.clif.fluids.items() if kind in settings.dose.names]


def _origins(settings: ClifExtraction, site: str | None) -> dict[str, str]:
    chosen = settings.clif
    return {
        "site": "given" if site is not None else f"adt.{chosen.unit} of the first unit",
        "patient": "hospitalization.hospitalization_id, and the number of the stay in it",
        "person": "patient.patient_id",
        **{name: f"vitals {category}" for name, category in chosen.vitals.items()},
        **{name: f"labs {category}" for name, category in chosen.labs.items()},
        "dose": f"medication_admin_continuous and _intermittent: {', '.join(_counted(settings))}",
        "flow": "adt: in_dttm to out_dttm",
        "no_icu": "adt.location_category",
    }
