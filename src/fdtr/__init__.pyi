from . import cohort, errors, evaluation, exchange, hub, inference, learners, plots, signing, simulation, site, tuning
from .errors import FdtrError
from .pipeline.draft import draft_study
from .pipeline.results import Results
from .pipeline.run import fit_baselines, run, tune
from .pipeline.simulate import simulate
from .policy import Policy
from .site.fitting import FederatedFit, LocalFit, fit_federated, fit_local, verify
from .site.rows import read_trajectories
from .site.site_check import check
from .site.site_evaluation import evaluate
from .study import Study
from .summary import SiteSummary, Total, combine
from .trajectories import Trajectories
from .trajectories.table_in_database import DatabaseTable
from .verified_policy import VerifiedPolicy

__version__: str
__all__ = [
    "DatabaseTable",
    "FdtrError",
    "FederatedFit",
    "LocalFit",
    "Policy",
    "Results",
    "SiteSummary",
    "Study",
    "Total",
    "Trajectories",
    "VerifiedPolicy",
    "__version__",
    "check",
    "cohort",
    "combine",
    "draft_study",
    "errors",
    "evaluate",
    "evaluation",
    "exchange",
    "fit_baselines",
    "fit_federated",
    "fit_local",
    "hub",
    "inference",
    "learners",
    "plots",
    "read_trajectories",
    "run",
    "signing",
    "simulate",
    "simulation",
    "site",
    "tune",
    "tuning",
    "verify",
]
