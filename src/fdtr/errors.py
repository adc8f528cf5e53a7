"""Everything that can go wrong for a user, as one tree of exceptions.

    FdtrError
    ├── StudyError
    │   ├── InvalidStudy            the study file contradicts itself or has an unknown key
    │   └── NoSharedEffect          sites would send messages that teach the others nothing
    ├── DataError
    │   ├── InvalidTable            faults in a table of trajectories, all of them at once
    │   ├── InvalidStates           states given to a policy lack a column, hold text or gaps
    │   ├── UnknownSite             the table has no rows of the site that was asked for
    │   ├── TooFewClusters          patients cannot be held out without splitting a cluster
    │   └── SeveralSites            one site is needed, the table holds more
    ├── FileError
    │   ├── UnreadableFile          missing, truncated, or not what its name says
    │   │   ├── MissingFile         there is none of that name
    │   │   ├── Linked              a link, where only the file or folder itself is taken
    │   │   ├── WrongLength         not as many bytes as the study or its own header tells
    │   │   ├── DamagedFile         a header that cannot be read
    │   │   ├── Forgotten           a site's memory lacks what was written into it
    │   │   ├── RepeatedKey         a header that says one thing twice
    │   │   ├── OtherArrays         arrays of another name, type or shape
    │   │   ├── ChangedFile         the checksum differs
    │   │   └── UnreadableKey       no private key of ours, or another passphrase
    │   │       └── ExposedKey      a private key that others on the machine can read
    │   ├── UnwritableFile          a file or folder could not be written
    │   │   └── PerhapsWritten      nobody can tell whether it was
    │   ├── ForeignFile             a sound file that is not ours
    │   │   ├── DisguisedFile       another format under our name: a pickle, an archive
    │   │   ├── OtherKind           a message where a policy is needed
    │   │   └── OtherFormat         a version of the format that is not known here
    │   ├── OtherPosting            another file lies where one is to be posted
    │   └── OutputExists            would overwrite something this command did not make
    ├── ExchangeError
    │   ├── OtherStudy              fingerprints differ
    │   ├── OtherShape              horizons or dimensions differ
    │   ├── OtherRound              made for another round
    │   │   └── Replayed            made for a round that is over
    │   ├── OtherRoster             made for another list of keys
    │   ├── OtherPhase              made for another part of the round
    │   ├── InvalidName             a site's name that cannot travel
    │   ├── UnknownSender           the roster has no such site
    │   ├── OtherKey                a private key that is not the site's in the roster
    │   ├── Unsigned                no signature where the roster has a key
    │   ├── WrongSignature          the signature is not the sender's, or of other content
    │   ├── InvalidSums             numbers that no patients could give
    │   │   ├── NotFinite           NaN or infinite
    │   │   ├── NotWhole            a count that is none
    │   │   ├── NotPositive         a matrix with a negative eigenvalue
    │   │   ├── TooLarge            larger than the bounds of the study allow
    │   │   └── Inconsistent        one sum contradicts another
    │   ├── SiteTwice               a site would be counted twice
    │   ├── SiteAbsent              the total does not contain the site
    │   ├── OtherSite               rows and summary belong to different sites
    │   ├── OtherPayload            a message holds other sums than the study asks for
    │   ├── ChangedSummary          the site's summary is not the one it sent
    │   ├── Implausible             numbers that no site's patients can have
    │   ├── NoStudyFolder           a folder without a study, or without a round of it
    │   ├── NotJoined               this site joined no such folder
    │   ├── Exposed                 what is a site's own lies where all can read it
    │   ├── Busy                    another process of the same party is at work
    │   ├── RoundClosed             the round went on without this site
    │   ├── OtherTotal              the hub's total is not the sum of what lies in the folder
    │   ├── MalformedParcel         a request or an answer over the network that the round cannot have
    │   ├── NoHubKey                the network is to carry a study whose roster lacks the hub
    │   ├── BrokenChain             a line of a site's log was changed, removed or moved
    │   ├── NotRepeatable           a noised summary cannot be computed again
    │   ├── UnknownRelease          the ledger holds no such release
    │   └── AlreadyPosted           others may have read what is to be withdrawn
    ├── DisclosureError
    │   ├── TooFewPatients          rule N
    │   ├── TooManyFeatures         rule RATIO
    │   ├── TooFewPerAction         rule ACTION
    │   ├── SmallCell               rule CELL
    │   ├── FewNonzero              rule NONZERO
    │   ├── SmallPair               rule PAIR
    │   ├── TooMuchLeverage         rule LEVERAGE
    │   ├── OutOfBounds             rule BOUND
    │   ├── NothingShared           rule COLLINEAR, which only warns
    │   ├── ReleasedBefore          rule ONCE
    │   ├── TooFewEffective         rule ESS
    │   ├── NotNoised               values without noise, in a study with differential privacy
    │   └── TooFewSites             rule SITES
    ├── MaskingError                the secure sum
    │   ├── OutOfRange              a sum is larger than its patients allow
    │   ├── TooManyPatients         a site has more than the study's max_patients
    │   ├── MalformedPart           a part of a round cannot be read
    │   ├── OutOfTurn               a step is asked for before those it needs, or after the round ended
    │   ├── BadAnnouncement         a site's key for the round is missing, unsigned or doubtful
    │   ├── KeyReused               a second message would go out under the masks of the first
    │   ├── TooFewSurvivors         a sum over so few sites would stand for one of them
    │   ├── NotASurvivor            the list of survivors lacks this site or names another message of it
    │   ├── OtherSurvivors          sites were shown different lists
    │   ├── MissingSignature        a survivor has not signed the list
    │   ├── RoundTooAlike           two sums together would stand for too few sites
    │   ├── SummedBefore            what would leave openly is in an opened secure sum
    │   ├── ToldBefore              what a secure sum would hide left openly
    │   ├── ChangedMessage          a masked message is not the one in the list
    │   └── BadOpening              an opening is missing, unsigned, or of another round
    ├── InvalidSettings             a settings file contradicts itself or names what is not there
    ├── ExtractionError             from a hospital's database to trajectories
    │   ├── Unreachable             a database that is not there, does not answer, or refuses who asks
    │   ├── MissingTable            the database lacks a table
    │   ├── SeveralTables           a table stands in several schemas
    │   ├── MissingColumn           a table lacks a column
    │   ├── UnsuitableColumn        a column holds other values than the format has there
    │   ├── NotPermitted            a table may not be read, or no temporary one made
    │   ├── RefusedStatement        the database could not do what it was asked
    │   ├── EmptyCohort             no stay is left
    │   ├── NoValues                a column, or a kind of dose, would be empty
    │   └── OneSite                 every stay is of the same site
    ├── ServiceError                a federation over the network
    │   ├── MissingProgram          a program of the system is not installed
    │   ├── NotServed               the hub's service does not run, or does not answer
    │   ├── OtherUser               a service's folder belongs to another user of the machine
    │   └── ServiceEnded            a program that the service needs ended
    ├── MissingExtra                an optional part of the software is not installed
    ├── Unfetchable                 something to be downloaded could not be had
    └── SingularSystem              a linear system cannot be solved as the study asks

A message says what, where, and what to do next. It never holds a patient's value.
"""


class FdtrError(Exception):
    """Root of every error a person can act on; the command line prints it and exits with 1."""


class StudyError(FdtrError, ValueError):
    """About the study file."""


class InvalidStudy(StudyError):
    """The study file contradicts itself, lacks a field or has an unknown one."""


class NoSharedEffect(StudyError):
    """The study shares no effect: sites would send messages that teach the others nothing."""


class DataError(FdtrError, ValueError):
    """About a table of trajectories or states."""


class InvalidTable(DataError):
    """Faults in a table of trajectories; `faults` lists them, most important first."""

    def __init__(self, message: str, faults: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.faults = faults


class InvalidStates(DataError):
    """States given to a policy lack a column, hold text or have gaps."""


class UnknownSite(DataError):
    """The table has no rows of the site that was asked for."""


class TooFewClusters(DataError):
    """Patients cannot be held out without splitting a cluster."""


class SeveralSites(DataError):
    """One site is needed and the table holds more."""


class FileError(FdtrError):
    """About a file on disk."""


class UnreadableFile(FileError):
    """A file is missing, truncated, or not what its name says."""


class MissingFile(UnreadableFile):
    """There is no file of that name."""


class Linked(UnreadableFile):
    """A link lies where only the file or the folder itself is taken."""


class WrongLength(UnreadableFile):
    """A file does not have as many bytes as the study, or its own header, tells."""


class DamagedFile(UnreadableFile):
    """A file's header cannot be read."""


class Forgotten(UnreadableFile):
    """A site's memory lacks what was written into it: it was deleted, emptied, or put back from an old copy."""


class RepeatedKey(UnreadableFile):
    """A header says one thing twice, so that two readers could understand two things."""


class OtherArrays(UnreadableFile):
    """A file holds arrays of another name, type or shape than its kind has."""


class ChangedFile(UnreadableFile):
    """A file's checksum differs from its content."""


class UnreadableKey(UnreadableFile):
    """A file holds no private key of ours, or its passphrase is another one."""


class ExposedKey(UnreadableKey):
    """A private key can be read by others on the machine."""


class UnwritableFile(FileError):
    """A file or folder could not be written; nothing is left of it."""


class PerhapsWritten(UnwritableFile):
    """The disk failed such that a file may lie there whole, and somebody may have it."""


class ForeignFile(FileError):
    """A sound file that is not the one needed."""


class DisguisedFile(ForeignFile):
    """A file of another format under our name: a pickle, an archive."""


class OtherKind(ForeignFile):
    """A file of ours, of another kind."""


class OtherFormat(ForeignFile):
    """A file of ours in a version of the format that is not known here."""


class OtherPosting(FileError):
    """Another file lies where one is to be posted."""


class OutputExists(FileError):
    """Writing would overwrite something this command did not make."""


class ExchangeError(FdtrError, ValueError):
    """About messages between sites and hub."""


class OtherStudy(ExchangeError):
    """Two parts carry different study fingerprints."""


class OtherShape(ExchangeError):
    """Two parts have different horizons or dimensions."""


class OtherRound(ExchangeError):
    """A message was made for another round."""


class Replayed(OtherRound):
    """A message of a round that is over came again."""


class OtherRoster(ExchangeError):
    """A message was made under another list of keys."""


class OtherPhase(ExchangeError):
    """A message belongs to another part of the round."""


class InvalidName(ExchangeError):
    """A site's name cannot travel: it is too long, or has characters that a header cannot hold."""


class UnknownSender(ExchangeError):
    """The roster has no such site."""


class OtherKey(ExchangeError):
    """A private key is not the one whose public half the roster has."""


class Unsigned(ExchangeError):
    """A message has no signature although the roster has its sender's key."""


class WrongSignature(ExchangeError):
    """A signature is not its sender's, or belongs to other content."""


class InvalidSums(ExchangeError):
    """Sums that no patients could give."""


class NotFinite(InvalidSums):
    """A sum is not a number or infinite."""


class NotWhole(InvalidSums):
    """A count of patients or directions is not a whole number in its range."""


class NotPositive(InvalidSums):
    """A matrix of sums of squares has a negative eigenvalue."""


class TooLarge(InvalidSums):
    """A sum is larger than the bounds of the study allow for so many patients."""


class Inconsistent(InvalidSums):
    """One sum contradicts another."""


class SiteTwice(ExchangeError):
    """A site would be counted twice."""


class SiteAbsent(ExchangeError):
    """The total does not contain the site."""


class OtherSite(ExchangeError):
    """Rows and summary belong to different sites."""


class OtherPayload(ExchangeError):
    """A message holds other sums than the study asks for."""


class ChangedSummary(ExchangeError):
    """A site's summary is not the one that went into the total."""


class Implausible(ExchangeError):
    """Numbers that no site's patients can have."""


class NoStudyFolder(ExchangeError):
    """A folder holds no study, or no round of it."""


class NotJoined(ExchangeError):
    """No such folder was joined at this site."""


class Exposed(ExchangeError):
    """What is a site's own lies where all can read it."""


class Busy(ExchangeError):
    """Another process of the same party is at work."""


class RoundClosed(ExchangeError):
    """A round went on without this site."""


class OtherTotal(ExchangeError):
    """The hub's total is not the sum of what lies in the folder."""


class MalformedParcel(ExchangeError):
    """A request or an answer over the network holds what its part of the round cannot have."""


class NoHubKey(ExchangeError):
    """The network is to carry a study whose roster lacks the hub, so that nobody could believe its totals."""


class BrokenChain(ExchangeError):
    """A line of a site's log was changed, removed or moved."""


class NotRepeatable(ExchangeError):
    """A summary with noise cannot be computed again; only the one that was sent will do."""


class UnknownRelease(ExchangeError):
    """The ledger holds no such release."""


class AlreadyPosted(ExchangeError):
    """A message that others may have read cannot be withdrawn."""


DECLINED = "site declined: disclosure check"
"""All that a refusal says to others: its reasons would tell what the rules protect."""


class DisclosureError(FdtrError):
    """A disclosure rule refused; nothing was released. `rule` is its code.

    It has two voices: its text is for the site's own eyes, `outward` is what others may be told.
    """

    rule = ""

    @property
    def outward(self) -> str:
        """The same sentence whatever the reason."""
        return DECLINED


class TooFewPatients(DisclosureError):
    """Rule N."""

    rule = "N"


class TooManyFeatures(DisclosureError):
    """Rule RATIO."""

    rule = "RATIO"


class TooFewPerAction(DisclosureError):
    """Rule ACTION."""

    rule = "ACTION"


class SmallCell(DisclosureError):
    """Rule CELL."""

    rule = "CELL"


class FewNonzero(DisclosureError):
    """Rule NONZERO."""

    rule = "NONZERO"


class SmallPair(DisclosureError):
    """Rule PAIR."""

    rule = "PAIR"


class TooMuchLeverage(DisclosureError):
    """Rule LEVERAGE."""

    rule = "LEVERAGE"


class OutOfBounds(DisclosureError):
    """Rule BOUND."""

    rule = "BOUND"


class NothingShared(DisclosureError):
    """Rule COLLINEAR: it warns and is never raised."""

    rule = "COLLINEAR"


class ReleasedBefore(DisclosureError):
    """Rule ONCE."""

    rule = "ONCE"


class TooFewEffective(DisclosureError):
    """Rule ESS."""

    rule = "ESS"


class NotNoised(DisclosureError):
    """Something would leave without the noise that the study promises."""

    rule = "NOISE"


class TooFewSites(DisclosureError):
    """Rule SITES."""

    rule = "SITES"


class MaskingError(FdtrError, ValueError):
    """About the secure sum; nothing was sent and no mask was opened."""


class OutOfRange(MaskingError):
    """A sum is larger than its patients allow, so that it might wrap around unseen."""


class TooManyPatients(MaskingError):
    """A site has more patients than the study's `max_patients`."""


class MalformedPart(MaskingError):
    """A part of a round cannot be read."""


class OutOfTurn(MaskingError):
    """A step of a round is asked for before those it needs, or after the round ended."""


class BadAnnouncement(MaskingError):
    """A site's key for the round is missing, unsigned or doubtful."""


class KeyReused(MaskingError):
    """A second message would go out under the masks of the first."""


class TooFewSurvivors(MaskingError):
    """A sum over so few sites would stand for one of them."""


class NotASurvivor(MaskingError):
    """The list of survivors lacks this site, or names another message of it."""


class OtherSurvivors(MaskingError):
    """Sites were shown different lists of survivors."""


class MissingSignature(MaskingError):
    """A survivor has not signed the list."""


class RoundTooAlike(MaskingError):
    """The sums of two rounds together would stand for too few sites."""


class SummedBefore(MaskingError):
    """Numbers that are in an opened secure sum would leave openly."""


class ToldBefore(MaskingError):
    """Numbers that left openly would be hidden in a secure sum in vain."""


class ChangedMessage(MaskingError):
    """A masked message is not the one in the list of survivors."""


class BadOpening(MaskingError):
    """An opening is missing, unsigned, or of another round."""


class SingularSystem(FdtrError, ArithmeticError):
    """A linear system cannot be solved as the study asks."""


class InvalidSettings(FdtrError, ValueError):
    """A settings file contradicts itself, lacks a field, has an unknown one, or names what is not there."""


class ExtractionError(FdtrError):
    """About the way from a hospital's database to a table of trajectories."""


class Unreachable(ExtractionError):
    """A database is not there, does not answer, or refuses who asks."""


class MissingTable(ExtractionError):
    """The database lacks a table that the extraction reads."""


class SeveralTables(ExtractionError):
    """Several schemas of the database have a table that the extraction reads."""


class MissingColumn(ExtractionError):
    """A table of the database lacks a column that the extraction reads."""


class UnsuitableColumn(ExtractionError):
    """A column of the database holds other values than the format has there."""


class NotPermitted(ExtractionError):
    """A table of the database may not be read, or no temporary one may be made."""


class RefusedStatement(ExtractionError):
    """The database could not do what it was asked."""


class EmptyCohort(ExtractionError):
    """No stay is left after the rules of the cohort."""


class NoValues(ExtractionError):
    """A covariate, the outcome or a kind of dose has no usable value at any stay of the cohort."""


class OneSite(ExtractionError):
    """Every stay of the cohort is of the same site."""


class ServiceError(FdtrError):
    """About a federation over the network."""


class MissingProgram(ServiceError):
    """A program of the system is not installed."""


class NotServed(ServiceError):
    """The hub's service does not run, or does not answer."""


class OtherUser(ServiceError):
    """A service's folder belongs to another user of the machine."""


class ServiceEnded(ServiceError):
    """A program that the service needs ended."""


class MissingExtra(FdtrError):
    """An optional part of the software is not installed."""


class Unfetchable(FdtrError):
    """Something that is downloaded when it is first asked for could not be had."""
