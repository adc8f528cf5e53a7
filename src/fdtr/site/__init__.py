"""A hospital's part: read its table, fit alone, make its message, finish its policy from the total, and value it."""

from fdtr.site.checks import SiteCheck, check, summarize
from fdtr.site.evaluating import SiteEvaluation, Split, Voters, evaluate, evaluate_site, tell_values, training_half
from fdtr.site.fits import (
    FederatedFit,
    LocalFit,
    MessageFit,
    fit_federated,
    fit_local,
    fit_message,
    fit_q_learning,
    others_in,
    recomputed,
)
from fdtr.site.own_check import check_total
from fdtr.site.private import cost_of, noise_of, refuse_values
from fdtr.site.rules import release_of, release_of_values
from fdtr.site.settings import (
    MESSAGE_RIDGE,
    choose_alone,
    choose_together,
    judge_pessimism,
    message_settings,
    score_together,
    settings_of,
)
from fdtr.site.table_one import release_of_table, tell_table
from fdtr.site.tables import read_trajectories
from fdtr.site.varying import Variation, vary

__all__ = [
    "MESSAGE_RIDGE",
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
    "choose_together",
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
    "tell_table",
    "tell_values",
    "training_half",
    "vary",
]
