"""A round over a network, whatever carries it: the hub's folder, a private mirror of it at every site.

Each request brings a site the postings that it lacks; the site takes its turn as in a shared folder, and its answer
takes back what it posted. So one set of rules decides in both exchanges, and a crash of either end is no new case.
"""

from fdtr.exchange.remote.audit import Audit, Verified, verify
from fdtr.exchange.remote.desk import Desk, DeskStudy
from fdtr.exchange.remote.jobs import Absence, Ending, Job, Reason, Result
from fdtr.exchange.remote.parcels import Answer, Outcome, Phase, Posting, Request
from fdtr.exchange.remote.rounds import Ask, Lost, conduct

__all__ = [
    "Absence",
    "Answer",
    "Ask",
    "Audit",
    "Desk",
    "DeskStudy",
    "Ending",
    "Job",
    "Lost",
    "Outcome",
    "Phase",
    "Posting",
    "Reason",
    "Request",
    "Result",
    "Verified",
    "conduct",
    "verify",
]
