"""The folder that the analyst of a CLIF site runs: config, study, settings and two scripts."""

from fdtr.cohort.package.config import Config
from fdtr.cohort.package.making import Package, check_fits, write_package

__all__ = ["Config", "Package", "check_fits", "write_package"]
