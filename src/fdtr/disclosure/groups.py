"""What the rules ask of all that is told of patients as a group: enough of them, and no more digits than hold."""

from math import floor, log10

from fdtr.errors import TooFewPatients


def require_patients(site: str, what: str, n: int, least: int) -> None:
    """Rule N for what is not a sum."""
    if n < least:
        raise TooFewPatients(
            f"Site {site!r} may not release {what}: rule N: {n} patients; the study asks for at least {least}. "
            "Nothing was written. Do not forward this message."
        )


def decimals_left(standard_error: float) -> int:
    """Decimals by which a number moves in steps of a twentieth to half of its standard error.

    >>> decimals_left(0.04), decimals_left(30.0)
    (2, -1)
    """
    return -floor(log10(standard_error / 2))
