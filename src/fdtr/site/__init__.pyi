from .cluster import on_cluster
from .fitting import fit_q_learning, others_in
from .many_sites import ManyLocalFits, ManyPolicies, fit_many, fit_many_federated
from .rows import partition_table, to_device
from .settings_choice import message_settings, score_together
from .site_check import SiteCheck
from .site_evaluation import SiteEvaluation, Voters, evaluate_site
from .site_message import count_message, summarize
from .site_table_one import summarize_table

__all__ = [
    "ManyLocalFits",
    "ManyPolicies",
    "SiteCheck",
    "SiteEvaluation",
    "Voters",
    "count_message",
    "evaluate_site",
    "fit_many",
    "fit_many_federated",
    "fit_q_learning",
    "message_settings",
    "on_cluster",
    "others_in",
    "partition_table",
    "score_together",
    "summarize",
    "summarize_table",
    "to_device",
]
