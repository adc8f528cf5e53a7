"""The study file: everything that is public and the same at every site."""

from fdtr.study.model import Study, read_study_bytes
from fdtr.study.sections import CategoricalBasis

__all__ = ["CategoricalBasis", "Study", "read_study_bytes"]
