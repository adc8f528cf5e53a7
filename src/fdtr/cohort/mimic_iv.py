"""MIMIC-IV: the paper's cohort of sepsis, from a user's own database.

Sites are the care units in which a stay began. Who has sepsis comes from mimic-code's derived table `sepsis3`, or, if
that is asked for, from ICD codes or from a list of stays.
"""

import csv
from datetime import datetime
from pathlib import Path
from typing import Literal

import pyarrow as pa

from fdtr.cohort.database import Database
from fdtr.cohort.dialects import statement
from fdtr.cohort.flow import Flow
from fdtr.cohort.locating import bring, find
from fdtr.cohort.settings import Extraction
from fdtr.cohort.steps import Extracted, Source, make_table, put_settings
from fdtr.errors import InvalidSettings, MissingTable, UnreadableFile
from fdtr.progress import Progress, ignore_progress

Sepsis = Literal["sepsis3", "icd", "listed"]

SCHEMAS = ("mimiciv_icu", "mimiciv_hosp", "mimiciv_derived", "icu", "hosp", "derived", "main", "public")
TABLES = {
    "icustays": ("subject_id", "hadm_id", "stay_id", "first_careunit", "intime", "outtime"),
    "patients": ("subject_id", "anchor_age", "anchor_year"),
    "admissions": ("hadm_id", "deathtime"),
    "chartevents": ("stay_id", "charttime", "itemid", "valuenum"),
    "labevents": ("subject_id", "charttime", "itemid", "valuenum"),
    "inputevents": (
        "stay_id", "starttime", "endtime", "itemid", "amount", "amountuom", "statusdescription",
        "ordercomponenttypedescription",
    ),
}  # fmt: skip
SEPTIC: dict[Sepsis, dict[str, tuple[str, ...]]] = {
    "sepsis3": {"sepsis3": ("stay_id", "suspected_infection_time", "sepsis3")},
    "icd": {"diagnoses_icd": ("hadm_id", "icd_code", "icd_version")},
    "listed": {},
}

CONCEPTS = {
    "weight": "chartevents 226512, 224639",
    "temperature": "chartevents 223761 (°F), 223762 (°C)",
    "sbp": "chartevents 220179, 220050, 225309",
    "hemoglobin": "labevents 51222, 50811",
    "potassium": "labevents 50971, 50822",
    "lactate": "labevents 50813",
}
FLUIDS = ("crystalloid", "colloid")
ORIGINS = CONCEPTS | {
    "site": "icustays.first_careunit",
    "patient": "icustays.stay_id",
    "person": "icustays.subject_id",
    "no_icu": "icustays.first_careunit",
    "flow": "icustays: intime to outtime of all stays",
    "dose": "inputevents, without rewritten rows and solutions that carry a drug",
}
RULES = {
    "sepsis3": "Sepsis-3 (derived table sepsis3)",
    "icd": "sepsis by ICD codes of the admission",
    "listed": "on the list of stays",
}


def extract_mimic_iv(
    db: Database,
    settings: Extraction,
    sepsis: Sepsis = "sepsis3",
    stays: pa.Table | None = None,
    progress: Progress = ignore_progress,
    *,
    sites: int = 2,
) -> Extracted:
    """The long table of the cohort; `stays` is the list (`read_stays`) where `sepsis` is "listed"."""
    _refuse_unknown(settings)
    if sepsis == "sepsis3" and find(db, "sepsis3", SCHEMAS) is None:
        raise MissingTable(
            "The database has no table sepsis3, which mimic-code derives (concepts/sepsis). Nothing was written. "
            "Derive it, or say who has sepsis otherwise: --sepsis icd goes by ICD codes, --stays FILE by your own list."
        )
    bring(db, TABLES | SEPTIC[sepsis], SCHEMAS, "MIMIC-IV")
    put_settings(db, settings)
    db.put("time_zero_rule", pa.table({"time_zero": [settings.time_zero]}))
    if stays is not None:
        db.put("listed", stays)
    total = len(CONCEPTS) + len(FLUIDS) + 1
    progress("stays", 0, total)
    for name, part in {
        "units": "units",
        "septic": f"septic_{sepsis}",
        "candidates": "candidates",
        "stays": "stays",
    }.items():
        db.make(name, statement(f"mimic_iv/{part}"))
    _gather(db, "measurements", tuple(CONCEPTS), progress, 1, total)
    _gather(db, "doses", FLUIDS, progress, 1 + len(CONCEPTS), total)
    return make_table(db, settings, Source(_flow(db, sepsis), ORIGINS), progress, sites=sites)


def _gather(db: Database, relation: str, concepts: tuple[str, ...], progress: Progress, first: int, total: int) -> None:
    """One relation of the rows of several concepts, each from its own file."""
    for number, concept in enumerate(concepts):
        progress(concept, first + number, total)
        db.make(concept, statement(f"mimic_iv/{concept}"))
    together = " UNION ALL ".join(f"SELECT * FROM {concept}" for concept in concepts)
    db.run(f"CREATE TEMPORARY VIEW {relation} AS {together}")


def _flow(db: Database, sepsis: Sepsis) -> Flow:
    counts = db.arrow(statement("mimic_iv/flow")).to_pylist()[0]
    flow = Flow("ICU stays", counts["found"]).then("of adults", left=counts["adults"])
    return flow.then(RULES[sepsis], left=counts["with_sepsis"]).then(
        "the person's first ICU stay", left=counts["first_stays"]
    )


def _refuse_unknown(settings: Extraction) -> None:
    unknown = [c.name for c in settings.charted if c.name not in CONCEPTS]
    unknown += [name for name in settings.dose.names if name not in FLUIDS]
    unknown += [c.name for c in settings.site_covariates if c.name not in ORIGINS]
    if unknown:
        known = ", ".join((*CONCEPTS, *FLUIDS, "no_icu", "flow"))
        raise InvalidSettings(
            f"The settings name {unknown[0]}, which is not extracted from MIMIC-IV (known: {known}). "
            "Nothing was written."
        )


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
    except (KeyError, TypeError, ValueError):
        raise UnreadableFile(
            f"The list of stays {path} needs a column stay_id with whole numbers, and may have a column onset with "
            "times such as 2150-03-01 08:00:00. Nothing was written."
        ) from None
    return pa.table({"stay_id": pa.array(ids, pa.int64()), "onset": pa.array(onsets, pa.timestamp("us"))})
