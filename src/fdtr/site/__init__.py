"""A site's part: read its table, fit alone, make its message, finish its policy from the total, and evaluate it."""

from fdtr.site.fitting import (
    FederatedFit,
    LocalFit,
    MessageFit,
    cost_of,
    fit_federated,
    fit_local,
    fit_message,
    fit_q_learning,
    noise_of,
    others_in,
    recomputed,
)
from fdtr.site.rows import read_trajectories
from fdtr.site.settings_choice import (
    choose_alone,
    judge_pessimism,
    message_settings,
    score_together,
    settings_of,
)
from fdtr.site.settings_sensitivity import Variation, vary
from fdtr.site.site_check import SiteCheck, check, check_total
from fdtr.site.site_evaluation import (
    SiteEvaluation,
    Split,
    Voters,
    evaluate,
    evaluate_site,
    refuse_values,
    summarize_values,
    training_half,
)
from fdtr.site.site_message import release_of, release_of_values, summarize
from fdtr.site.site_table_one import release_of_table, summarize_table

__all__ = [
    "FederatedFit",
    "LocalFit",
    "MessageFit",
    "SiteCheck",
    "SiteEvaluation",
    "Split",
    "Variation",
    "Voters",
    "check",
    "check_total",
    "choose_alone",
    "cost_of",
    "evaluate",
    "evaluate_site",
    "fit_federated",
    "fit_local",
    "fit_message",
    "fit_q_learning",
    "judge_pessimism",
    "message_settings",
    "noise_of",
    "others_in",
    "read_trajectories",
    "recomputed",
    "refuse_values",
    "release_of",
    "release_of_table",
    "release_of_values",
    "score_together",
    "settings_of",
    "summarize",
    "summarize_table",
    "summarize_values",
    "training_half",
    "vary",
]
