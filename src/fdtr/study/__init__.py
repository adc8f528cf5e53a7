"""The study file: everything that is public and the same at every site."""

from fdtr.study.study_file import Study, read_study_bytes, require_study, set_roster

__all__ = ["Study", "read_study_bytes", "require_study", "set_roster"]
