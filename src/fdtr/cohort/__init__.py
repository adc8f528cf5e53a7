"""From a hospital's tables to trajectories: a source becomes three relations, and these become the long table.

A source (MIMIC-IV, CLIF, …) is mapped, inside a database, to

    stays         one row a stay: stay_id, patient_id, site, time_zero, out_time, death_time (NULL), site covariates
    measurements  one row a charted value: stay_id, time, name, value, in the units of the settings
    doses         one row a dose: stay_id, name, start_time, end_time, amount in ml; a bolus has start_time = end_time

and one set of SQL files turns these into one row a stay and step. The SQL is the same on DuckDB and on PostgreSQL.
Rows stay in the database until the table is complete. No message contains a patient's value.

    settings = ClifSettings.load("settings.toml")
    extracted = extract_clif(Path("clif"), settings, site="north")
    write_extraction(extracted, draft_study(extracted.settings), "data")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fdtr.cohort.clif import extract_clif as extract_clif
    from fdtr.cohort.clif_settings import ClifSettings as ClifSettings
    from fdtr.cohort.databases import open_database as open_database
    from fdtr.cohort.extraction_folder import write_extraction as write_extraction
    from fdtr.cohort.meds import MedsSettings as MedsSettings
    from fdtr.cohort.meds import extract_meds as extract_meds
    from fdtr.cohort.mimic_iv import extract_mimic_iv as extract_mimic_iv
    from fdtr.cohort.mimic_iv import read_stays as read_stays
    from fdtr.cohort.mimic_iv_settings import AGE as AGE
    from fdtr.cohort.mimic_iv_settings import MimicSettings as MimicSettings
    from fdtr.cohort.minari import read_episodes as read_episodes
    from fdtr.cohort.minari import write_episodes as write_episodes
    from fdtr.cohort.study_drafts import draft_study as draft_study
    from fdtr.cohort.study_drafts import draft_target_trial as draft_target_trial
    from fdtr.cohort.time_steps import ExtractedTable as ExtractedTable
    from fdtr.cohort.time_steps import complete_cases as complete_cases

# The module of each public name. It is imported when the name is first used, so that `import fdtr.cohort` stays light.
_MODULES = {
    "AGE": "mimic_iv_settings",
    "ClifSettings": "clif_settings",
    "ExtractedTable": "time_steps",
    "MedsSettings": "meds",
    "MimicSettings": "mimic_iv_settings",
    "complete_cases": "time_steps",
    "draft_study": "study_drafts",
    "draft_target_trial": "study_drafts",
    "extract_clif": "clif",
    "extract_meds": "meds",
    "extract_mimic_iv": "mimic_iv",
    "open_database": "databases",
    "read_episodes": "minari",
    "read_stays": "mimic_iv",
    "write_episodes": "minari",
    "write_extraction": "extraction_folder",
}

__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"fdtr.cohort.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'fdtr.cohort' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
