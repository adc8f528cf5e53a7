"""The paper's theorems, corollaries and remarks, each tried where the truth is known."""

from fdtr.pipeline.reproduce.theorems.all import run_theorems

__all__ = ["run_theorems"]
