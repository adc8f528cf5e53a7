"""Everything that can go wrong for a user, as one tree of exceptions.

    FdtrError
    ├── StudyError
    │   └── InvalidStudy            the study file contradicts itself or has an unknown key
    ├── DataError
    │   ├── InvalidTable            faults in a table of trajectories, all of them at once
    │   ├── InvalidStates           states given to a policy lack a column, hold text or gaps
    │   ├── UnknownSite             the table has no rows of the site that was asked for
    │   ├── TooFewClusters          patients cannot be held out without splitting a cluster
    │   └── SeveralSites            one site is needed, the table holds more
    ├── FileError
    │   ├── UnreadableFile          missing, truncated, or not what its name says
    │   ├── UnwritableFile          a file or folder could not be written
    │   ├── ForeignFile             a sound file of another kind or format version
    │   └── OutputExists            would overwrite something this command did not make
    ├── ExchangeError
    │   ├── OtherStudy              fingerprints differ
    │   ├── OtherShape              horizons or dimensions differ
    │   ├── SiteTwice               a site would be counted twice
    │   ├── SiteAbsent              the total does not contain the site
    │   ├── OtherSite               rows and summary belong to different sites
    │   ├── OtherPayload            a message holds other sums than the study asks for
    │   ├── ChangedSummary          the site's summary is not the one it sent
    │   ├── NotRepeatable           a noised summary cannot be computed again
    │   └── UnknownRelease          the ledger holds no such release
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


class UnwritableFile(FileError):
    """A file or folder could not be written; nothing is left of it."""


class ForeignFile(FileError):
    """A sound file of another kind or format version."""


class OutputExists(FileError):
    """Writing would overwrite something this command did not make."""


class ExchangeError(FdtrError, ValueError):
    """About messages between sites and hub."""


class OtherStudy(ExchangeError):
    """Two parts carry different study fingerprints."""


class OtherShape(ExchangeError):
    """Two parts have different horizons or dimensions."""


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


class NotRepeatable(ExchangeError):
    """A summary with noise cannot be computed again; only the one that was sent will do."""


class UnknownRelease(ExchangeError):
    """The ledger holds no such release."""


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


class SingularSystem(FdtrError, ArithmeticError):
    """A linear system cannot be solved as the study asks."""


class MissingExtra(FdtrError):
    """An optional part of the software is not installed."""


class Unfetchable(FdtrError):
    """Something that is downloaded when it is first asked for could not be had."""
