"""Everything that can go wrong for a user, as one tree of exceptions.

    FdtrError
    ├── InvalidStudy                the study file contradicts itself, or lacks what is needed here
    ├── InvalidSettings             a settings file contradicts itself or names what is not there
    ├── DataError
    │   ├── InvalidTable            faults in a table of trajectories, all of them at once
    │   ├── InvalidStates           states given to a policy lack a column, hold text or gaps
    │   ├── UnknownSite             the table has no rows of the site, or several sites where one is needed
    │   └── TooFewClusters          patients cannot be held out without splitting a cluster
    ├── FileError
    │   ├── UnreadableFile          missing, a link, or not what its name says
    │   │   ├── MissingFile         there is none of that name
    │   │   ├── DamagedFile         truncated or changed: its length, header, arrays or checksum are wrong
    │   │   └── LostState           records that a site had written are gone
    │   ├── UnwritableFile          a file or folder could not be written
    │   │   └── PerhapsWritten      it is unknown whether it was
    │   ├── ForeignFile             a sound file of another kind or another program
    │   │   └── OtherFormat         a version of the format that is not known here
    │   ├── OtherPosting            another file lies where one is to be posted
    │   └── OutputExists            would overwrite something this command did not make
    ├── ExchangeError
    │   ├── OtherStudy              made for another study: its fingerprint, shape or kind of sums differs
    │   ├── OtherRound              made for another round or phase, or the round is over
    │   ├── OtherRoster             made under another list of keys
    │   ├── WrongSite               a site's name is invalid, counted twice, absent or another's
    │   ├── BadSignature            it is not proven that the sender made this
    │   ├── InvalidSums             numbers that no patients could give
    │   ├── ChangedSummary          a summary or total is not the one that was sent
    │   ├── NoStudyFolder           a folder without a study, or without a round of it
    │   ├── NotJoined               this site joined no such folder
    │   ├── Exposed                 private files or a private key lie where others can read them
    │   ├── Busy                    another process of the same party is at work
    │   ├── MalformedRequest        a request or an answer over the network that the round cannot have
    │   ├── BrokenChain             a line of a site's log was changed, removed or moved
    │   ├── NotRepeatable           a noised summary cannot be computed again
    │   └── NotWithdrawable         the ledger has no such release, or others may have read it
    ├── DisclosureError             a disclosure rule refused; `rule` is its code
    ├── MaskingError                the secure sum
    │   ├── OutOfRange              a sum, or a number of patients, is larger than the study allows
    │   ├── MalformedPart           a part of a round cannot be read
    │   ├── ProtocolViolation       a step out of order, or a part that the other parts contradict
    │   ├── TooFewSurvivors         a sum over so few sites would reveal one of them
    │   └── DifferencingRisk        a difference of releases would reveal a few sites
    ├── ExtractionError             from a hospital's database to trajectories
    │   ├── Unreachable             a database that is not there, does not answer, or refuses the user
    │   ├── NotPermitted            a table may not be read, or no temporary one made
    │   ├── UnsuitableTables        a table, column or usable value is missing, ambiguous or of another type
    │   ├── RefusedStatement        the database could not carry out a statement
    │   └── EmptyCohort             no stay is left
    ├── ServiceError                a program of a federation over the network cannot run, or ended
    │   └── NotServed               the hub's service does not run, or does not answer
    ├── UnusableCluster             a cluster cannot be reached, lost its workers, or these lack what they need
    ├── MissingExtra                an optional part of the software is not installed
    └── SingularSystem              a linear system cannot be solved as the study asks

A class is a kind that somebody handles or that a user can tell apart by what to do next. The message says the rest:
what, where, and what to do next. It never holds a patient's value.
"""

from typing import Literal


class FdtrError(Exception):
    """Root of every error a person can act on; the command line prints it and exits with 1."""


class InvalidStudy(FdtrError, ValueError):
    """The study file contradicts itself, has an unknown field, or lacks one that is needed here."""


class InvalidSettings(FdtrError, ValueError):
    """A settings file contradicts itself, lacks a field, has an unknown one, or names what is not there."""


class DataError(FdtrError, ValueError):
    """About a table of trajectories or states."""


class InvalidTable(DataError):
    """Faults in a table of trajectories; `faults` lists them, most important first."""

    def __init__(self, message: str, faults: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.faults = faults


class InvalidStates(DataError):
    """States given to a policy lack a column, hold text or have gaps."""


class Abstains(DataError):
    """A verified policy was asked to act where it says nothing, without what clinicians chose."""


class UnknownSite(DataError):
    """The table has no rows of the site that was asked for, or several sites where one is needed."""


class TooFewClusters(DataError):
    """Patients cannot be held out without splitting a cluster."""


class FileError(FdtrError):
    """About a file on disk."""


class UnreadableFile(FileError):
    """A file is missing, a link where none is followed, or not what its name says: no key of fdtr, say."""


class MissingFile(UnreadableFile):
    """There is no file of that name."""


class DamagedFile(UnreadableFile):
    """A file was truncated or changed: its length, header, arrays or checksum are not as they must be."""


class LostState(UnreadableFile):
    """Records that a site had written are gone: deleted, emptied, or replaced by an old copy."""


class UnwritableFile(FileError):
    """A file or folder could not be written; nothing is left of it."""


class PerhapsWritten(UnwritableFile):
    """The disk failed such that a file may lie there whole, and somebody may have it."""


class ForeignFile(FileError):
    """A sound file that is not the one needed: of another kind, or of another program."""


class OtherFormat(ForeignFile):
    """A file of fdtr in a version of the format that is not known here."""


class OtherPosting(FileError):
    """Another file lies where one is to be posted."""


class OutputExists(FileError):
    """Writing would overwrite something this command did not make."""


class ExchangeError(FdtrError, ValueError):
    """About messages between sites and hub."""


class OtherStudy(ExchangeError):
    """Two parts belong to different studies: their fingerprints, shapes or kinds of sums differ."""


class OtherRound(ExchangeError):
    """A message was made for another round or phase, or the round is over."""


class OtherRoster(ExchangeError):
    """A message was made under another list of keys."""


class WrongSite(ExchangeError):
    """A site's name is invalid, not in the roster, counted twice, absent from the total, or another site's."""


class BadSignature(ExchangeError):
    """It is not proven that the sender made this: unknown sender, another key, no signature or a wrong one."""


class InvalidSums(ExchangeError):
    """Numbers that no patients could give."""


class ChangedSummary(ExchangeError):
    """A site's summary is not the one that went into the total, or the total is not the sum of the messages."""


class NoStudyFolder(ExchangeError):
    """A folder holds no study, or no round of it."""


class NotJoined(ExchangeError):
    """No such folder was joined at this site."""


class Exposed(ExchangeError):
    """Private files of a site, or a private key, lie where others can read them."""


class Busy(ExchangeError):
    """Another process of the same party is at work."""


class MalformedRequest(ExchangeError):
    """A request or an answer over the network holds what its phase of the round cannot have."""


class BrokenChain(ExchangeError):
    """A line of a site's log was changed, removed or moved."""


class NotRepeatable(ExchangeError):
    """A summary with noise or secret weights is not computed again; only the one that was sent will do."""


class NotWithdrawable(ExchangeError):
    """A release cannot be withdrawn: the ledger does not hold it, or others may have read it."""


RuleCode = Literal[
    "N", "RATIO", "NUMBERS", "ACTION", "CELL", "NONZERO", "REF", "PAIR", "LEVERAGE", "BOUND", "COLLINEAR", "ONCE",
    "ESS", "NOISE", "SITES",
]  # fmt: skip
"""Codes of the disclosure rules. `fdtr.disclosure.rules` says what each requires."""

DECLINED = "site declined: disclosure check"
"""All that a refusal says to others: its reasons would tell what the rules protect."""


class DisclosureError(FdtrError):
    """A disclosure rule refused; nothing was released. `rule` is its code.

    The text is for the site's own eyes; `outward` is what others may be told.
    """

    def __init__(self, rule: RuleCode, message: str) -> None:
        super().__init__(rule, message)
        self.rule = rule
        self.message = message

    def __str__(self) -> str:
        return self.message

    @property
    def outward(self) -> str:
        """The same sentence whatever the reason."""
        return DECLINED


class MaskingError(FdtrError, ValueError):
    """About the secure sum; nothing was sent and no mask was opened."""


class OutOfRange(MaskingError):
    """A sum or a number of patients is larger than the study allows, so that a sum might wrap around unseen."""


class MalformedPart(MaskingError):
    """A part of a round cannot be read."""


class ProtocolViolation(MaskingError):
    """A step is out of order, or a key, list, signature, message or opening contradicts the rest of the round."""


class TooFewSurvivors(MaskingError):
    """A sum over so few sites would reveal one of them."""


class DifferencingRisk(MaskingError):
    """The difference of this release and earlier ones would reveal the sums of a few sites."""


class ExtractionError(FdtrError):
    """About the way from a hospital's database to a table of trajectories."""


class Unreachable(ExtractionError):
    """A database is not there, does not answer, or refuses the user."""


class NotPermitted(ExtractionError):
    """A table of the database may not be read, or no temporary one may be made."""


class UnsuitableTables(ExtractionError):
    """A table, a column or a usable value is missing, in several places, of another type, or of one site alone."""


class RefusedStatement(ExtractionError):
    """The database could not carry out a statement."""


class EmptyCohort(ExtractionError):
    """No stay is left after the rules of the cohort."""


class ServiceError(FdtrError):
    """A program of a federation over the network is missing, belongs to another user, or ended."""


class NotServed(ServiceError):
    """The hub's service does not run, or does not answer."""


class UnusableCluster(FdtrError):
    """A cluster cannot be reached or started, lost all workers, or these lack the partition or this version of fdtr."""


class MissingExtra(FdtrError):
    """An optional part of the software is not installed."""


class SingularSystem(FdtrError, ArithmeticError):
    """A linear system cannot be solved as the study asks."""
