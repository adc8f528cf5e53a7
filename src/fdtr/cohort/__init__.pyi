from .clif import extract_clif
from .clif_settings import ClifSettings
from .database_table import partition_database_table
from .databases import open_database
from .extraction_folder import write_extraction
from .meds import MedsSettings, extract_meds
from .mimic_iv import extract_mimic_iv, read_stays
from .mimic_iv_settings import AGE, MimicSettings
from .minari import read_episodes, write_episodes
from .study_drafts import draft_study_from_settings, draft_target_trial
from .time_steps import ExtractedTable, complete_cases

__all__ = [
    "AGE",
    "ClifSettings",
    "ExtractedTable",
    "MedsSettings",
    "MimicSettings",
    "complete_cases",
    "draft_study_from_settings",
    "draft_target_trial",
    "extract_clif",
    "extract_meds",
    "extract_mimic_iv",
    "open_database",
    "partition_database_table",
    "read_episodes",
    "read_stays",
    "write_episodes",
    "write_extraction",
]
