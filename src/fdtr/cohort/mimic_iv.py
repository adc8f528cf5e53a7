"""MIMIC-IV: a cohort of sepsis like the paper's (Section 5.2), from a user's own database.

Sites are the care units in which a stay began. Who has sepsis comes from mimic-code's derived table `sepsis3`, or, if
that is asked for, from ICD codes or from a list of stays.
"""

import csv
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Literal

import pyarrow as pa

from fdtr.cohort.database import Database
from fdtr.cohort.dialects import statement
from fdtr.cohort.flow import Flow
from fdtr.cohort.locating import Columns, bring, find
from fdtr.cohort.mimic_settings import CONCEPTS, FLUIDS, MimicExtraction, MimicIv
from fdtr.cohort.rules import keep_cohort
from fdtr.cohort.steps import Extracted, Source, make_table, put_settings
from fdtr.errors import EmptyCohort, MissingTable, UnreadableFile, UnsuitableColumn
from fdtr.progress import Progress, ignore_progress

Sepsis = Literal["sepsis3", "icd", "listed"]

TABLES: Mapping[str, Columns] = {
    "icustays": {
        "subject_id": "whole", "hadm_id": "whole", "stay_id": "whole", "first_careunit": "text", "intime": "time",
        "outtime": "time",
    },
    "patients": {"subject_id": "whole", "anchor_age": "number", "anchor_year": "number"},
    "admissions": {"hadm_id": "whole", "deathtime": "time"},
    "chartevents": {"stay_id": "whole", "charttime": "time", "itemid": "whole", "valuenum": "number"},
    "labevents": {"subject_id": "whole", "charttime": "time", "itemid": "whole", "valuenum": "number"},
    "inputevents": {
        "stay_id": "whole", "starttime": "time", "endtime": "time", "itemid": "whole", "amount": "number",
        "amountuom": "text", "statusdescription": "text", "ordercomponenttypedescription": "text",
    },
}  # fmt: skip
SEPTIC: Mapping[Sepsis, Mapping[str, Columns]] = {
    "sepsis3": {"sepsis3": {"stay_id": "whole", "suspected_infection_time": "time", "sepsis3": "flag"}},
    "icd": {"diagnoses_icd": {"hadm_id": "whole", "icd_code": "text", "icd_version": "whole"}},
    "listed": {},
}

RULES: Mapping[Sepsis, str] = {
    "sepsis3": "Sepsis-3 (derived table sepsis3)",
    "icd": "sepsis by ICD codes of the admission",
    "listed": "on the list of stays",
}
LOOKS_AHEAD: Mapping[Sepsis, str] = {
    "sepsis3": "Sepsis-3 by mimic-code counts organ failure up to 24 hours after infection was suspected, so that a "
    "stay may be eligible by what came after time zero.",
    "icd": "ICD codes are given at discharge, so that a stay may be eligible by what came after time zero.",
    "listed": "Whether the list of stays looks beyond time zero is for its maker to say.",
}
"""How who has sepsis is known later than a trial would know it."""


def extract_mimic_iv(
    db: Database,
    settings: MimicExtraction,
    sepsis: Sepsis = "sepsis3",
    stays: pa.Table | None = None,
    progress: Progress = ignore_progress,
    *,
    sites: int = 2,
) -> Extracted:
    """The long table of the cohort; `stays` is the list (`read_stays`) where `sepsis` is "listed"."""
    schemas = settings.mimic_iv.schemas
    if sepsis == "sepsis3" and find(db, "icustays", schemas) and not find(db, "sepsis3", schemas):
        raise MissingTable(
            "The database has no table sepsis3, which mimic-code derives (concepts/sepsis). Nothing was written. "
            "Derive it, or say who has sepsis otherwise: --sepsis icd goes by ICD codes, --stays FILE by your own list."
        )
    bring(db, {**TABLES, **SEPTIC[sepsis]}, schemas, "MIMIC-IV")
    put_settings(db, settings)
    db.put("time_zero_rule", pa.table({"time_zero": [settings.time_zero]}))
    _put_items(db, settings.mimic_iv)
    if stays is not None:
        db.put("listed", stays)
    charted = (*settings.concepts, *(f"{table}_items" for table in _tables_of_items(settings.mimic_iv)))
    total = len(charted) + len(FLUIDS) + 1
    progress("stays", 0, total)
    for name, part in {"units": "units", "septic": f"septic_{sepsis}", "candidates": "candidates"}.items():
        db.make(name, statement(f"mimic_iv/{part}"))
    flow = _keep(db, sepsis)
    db.make("stays", statement("mimic_iv/stays"))
    _refuse_unknown_flow(db, settings)
    _gather(db, "measurements", charted, progress, 1, total)
    _gather(db, "doses", tuple(FLUIDS), progress, 1 + len(charted), total)
    return make_table(db, settings, Source(flow, _origins(settings)), progress, sites=sites)


def _put_items(db: Database, chosen: MimicIv) -> None:
    """The items of the settings as small relations, which the SQL files join with."""
    lines = [(line, item) for line in chosen.lines for item in line.items]
    db.put(
        "charted_items",
        pa.table(
            {
                "name": pa.array([line.name for line, _ in lines], pa.string()),
                "source": pa.array([line.table for line, _ in lines], pa.string()),
                "itemid": pa.array([item for _, item in lines], pa.int64()),
                "factor": pa.array([line.factor for line, _ in lines], pa.float64()),
                "shift": pa.array([line.shift for line, _ in lines], pa.float64()),
            }
        ),
    )
    db.put("not_fluids", pa.table({"itemid": pa.array(chosen.not_fluids, pa.int64())}))


def _tables_of_items(chosen: MimicIv) -> list[str]:
    return sorted({line.table for line in chosen.lines})


def _gather(db: Database, relation: str, concepts: tuple[str, ...], progress: Progress, first: int, total: int) -> None:
    """One relation of the rows of several concepts, each from its own file."""
    for number, concept in enumerate(concepts):
        progress(concept, first + number, total)
        db.make(concept, statement(f"mimic_iv/{concept}"))
    together = " UNION ALL ".join(f"SELECT * FROM {concept}" for concept in concepts)
    db.run(f"CREATE TEMPORARY VIEW {relation} AS {together}")


def _keep(db: Database, sepsis: Sepsis) -> Flow:
    if db.number("SELECT count(*) FROM candidates") == 0:
        raise EmptyCohort(
            "The table icustays of the database is empty. Nothing was written. Load MIMIC-IV into it, or name another "
            "database with --db."
        )
    rules = [
        ("with their rows in patients and admissions", "recorded = 1"),
        ("with a care unit and a time of admission", "site IS NOT NULL AND in_time IS NOT NULL"),
        ("of adults", "adult = 1"),
        (RULES[sepsis], "septic = 1"),
        ("the person's first ICU stay", "stay_number = 1"),
    ]
    return keep_cohort(db, "candidates", "ICU stays", rules)


def _refuse_unknown_flow(db: Database, settings: MimicExtraction) -> None:
    unknown = db.arrow("SELECT DISTINCT site FROM stays WHERE flow IS NULL ORDER BY site")["site"].to_pylist()
    if unknown and "flow" in {one.name for one in settings.site_covariates}:
        raise UnsuitableColumn(
            f"No stay that began in {unknown[0]} has an outtime in icustays, so that the flow of this unit is not "
            "known. Nothing was written. Load icustays anew, or leave flow out of site_covariates in the settings."
        )


def _origins(settings: MimicExtraction) -> dict[str, str]:
    items: dict[str, str] = {}
    for line in settings.mimic_iv.lines:
        items[line.name] = f"{items[line.name]}; {line.origin}" if line.name in items else line.origin
    without = set(map(str, settings.mimic_iv.not_fluids))
    fluids = [item for kind in settings.dose.names for item in FLUIDS[kind].split(", ") if item not in without]
    return {
        **CONCEPTS,
        **items,
        "site": "icustays.first_careunit",
        "patient": "icustays.stay_id",
        "person": "icustays.subject_id",
        "no_icu": "icustays.first_careunit",
        "flow": "icustays: intime to outtime of all stays",
        "dose": f"inputevents {', '.join(fluids)}, without rewritten rows and solutions that carry a drug",
    }


def read_stays(path: str | Path) -> pa.Table:
    """A user's list: CSV with the column stay_id and, if wanted, onset (such as 2150-03-01 08:00:00)."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        raise UnreadableFile(f"The list of stays {path} could not be read. Is it a CSV file in UTF-8?") from None
    rows = list(csv.DictReader(text.splitlines()))
    try:
        ids = [int(row["stay_id"]) for row in rows]
        onsets = [datetime.fromisoformat(row["onset"]) if row.get("onset") else None for row in rows]
        if any(onset is not None and onset.tzinfo is not None for onset in onsets):
            raise ValueError  # MIMIC-IV's times are in no zone that an offset could refer to
    except (KeyError, TypeError, ValueError):
        raise UnreadableFile(
            f"The list of stays {path} needs a column stay_id with whole numbers, and may have a column onset with "
            "times such as 2150-03-01 08:00:00, without an offset or a zone. Nothing was written."
        ) from None
    return pa.table({"stay_id": pa.array(ids, pa.int64()), "onset": pa.array(onsets, pa.timestamp("us"))})
