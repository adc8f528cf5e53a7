"""The study file: everything that is public and the same at every site."""

from fdtr.study.model import Study
from fdtr.study.sections import CategoricalBasis

__all__ = ["CategoricalBasis", "Study"]
