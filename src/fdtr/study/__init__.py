"""The study file: everything that is public and the same at every site."""

from fdtr.study.model import CategoricalBasis, Study

__all__ = ["CategoricalBasis", "Study"]
