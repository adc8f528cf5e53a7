"""Learn treatment rules together with other hospitals; share sums, never patients.

    study = fdtr.Study.load("study.toml")
    data = fdtr.read_trajectories("table.csv", study)
    results = fdtr.run(study, data)

Research software: not validated for clinical use.
"""

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fdtr.errors import FdtrError as FdtrError
    from fdtr.pipeline.results import Results as Results
    from fdtr.pipeline.run import fit_baselines as fit_baselines
    from fdtr.pipeline.run import run as run
    from fdtr.policy import Policy as Policy
    from fdtr.site import FederatedFit as FederatedFit
    from fdtr.site import LocalFit as LocalFit
    from fdtr.site import evaluate as evaluate
    from fdtr.site import fit_federated as fit_federated
    from fdtr.site import fit_local as fit_local
    from fdtr.site import read_trajectories as read_trajectories
    from fdtr.study import Study as Study
    from fdtr.summary import SiteSummary as SiteSummary
    from fdtr.summary import Total as Total
    from fdtr.summary import combine as combine
    from fdtr.trajectories import Trajectories as Trajectories

__version__ = "0.1.0"

# Where each public name lives; it is imported when it is first used, so that `import fdtr` costs next to nothing.
_HOMES = {
    "FdtrError": "errors",
    "FederatedFit": "site",
    "LocalFit": "site",
    "Policy": "policy",
    "Results": "pipeline.results",
    "SiteSummary": "summary",
    "Study": "study",
    "Total": "summary",
    "Trajectories": "trajectories",
    "combine": "summary",
    "evaluate": "site",
    "fit_baselines": "pipeline.run",
    "fit_federated": "site",
    "fit_local": "site",
    "read_trajectories": "site",
    "run": "pipeline.run",
}

__all__ = ["__version__", *_HOMES]

logging.getLogger("fdtr").addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"fdtr.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'fdtr' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
