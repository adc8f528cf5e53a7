"""The settings of an extraction from MEDS events: a user's map from codes to stays, covariates, doses and outcome."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from fdtr.cohort.printing import Setting
from fdtr.cohort.settings import SITE_COVARIATES, Extraction, Hours, Name, SiteCovariate
from fdtr.study.sections import Flag, Number, Text, Whole

Codes = Annotated[
    tuple[Text, ...],
    Field(min_length=1, description="Codes as they stand; one that ends in * means all that begin so."),
]


class ChartedCodes(Setting):
    """Events that chart a covariate, or the outcome."""

    name: Annotated[Name, Field(description="The covariate, or the outcome.")]
    codes: Codes
    factor: Annotated[Number, Field(description="What the number is multiplied by, …")] = 1.0
    shift: Annotated[Number, Field(description="… and what is added then, to have the unit of the settings.")] = 0.0


class DoseCodes(Setting):
    """Events that give a dose: its ml at once, or a rate in ml an hour that holds until the next event."""

    name: Annotated[Name, Field(description="The kind of dose, which [dose] names.")]
    codes: Codes
    kind: Annotated[Literal["bolus", "rate"], Field(description="ml at once, or ml an hour until the next event.")] = (
        "bolus"
    )
    factor: Annotated[Number, Field(gt=0, description="What the number is multiplied by, to be ml or ml an hour.")] = (
        1.0
    )
    stop: Annotated[tuple[Text, ...], Field(description="Codes that stop a rate.")] = ()

    @model_validator(mode="after")
    def _check_stop(self) -> Self:
        if self.stop and self.kind == "bolus":
            raise ValueError("a bolus is over at once: stop belongs to a rate")
        return self


class Meds(Setting):
    """What the codes of a MEDS dataset mean."""

    begin: Annotated[Codes, Field(description="Events that begin a stay: time zero.")]
    leave: Annotated[tuple[Text, ...], Field(description="Events that end one.")] = ()
    birth: Annotated[tuple[Text, ...], Field(description="Events that tell when a person was born.")] = ("MEDS_BIRTH",)
    death: Annotated[tuple[Text, ...], Field(description="Events that tell when a person died.")] = ("MEDS_DEATH",)
    site_part: Annotated[
        Whole | None, Field(ge=1, description="The part of a beginning's code, between //, that names the site.")
    ] = None
    site_column: Annotated[Text | None, Field(description="The column of the shards that names the site.")] = None
    youngest: Annotated[Whole, Field(ge=0, description="Years at time zero; 0: of any age, known or not.")] = 18
    first_stay: Annotated[Flag, Field(description="Only the first stay of each person.")] = True
    smallest_site: Annotated[Whole, Field(ge=1, description="Sites with fewer stays leave the cohort.")] = 1
    longest_hours: Annotated[Hours, Field(description="A rate that is not charted anew for longer is not held.")] = 24.0
    charted: Annotated[
        tuple[ChartedCodes, ...], Field(min_length=1, description="Events that chart a covariate, or the outcome.")
    ]
    doses: Annotated[tuple[DoseCodes, ...], Field(min_length=1, description="Events that give a dose.")]

    @model_validator(mode="after")
    def _check_site(self) -> Self:
        if self.site_part is not None and self.site_column is not None:
            raise ValueError("site_part and site_column both name the site: give one of them")
        return self


class MedsExtraction(Extraction):
    """All settings of an extraction from MEDS events; the section [meds] has no defaults, because codes are free."""

    SOURCE: ClassVar[Literal["mimic-iv", "clif", "meds"]] = "meds"

    name: Annotated[Text, Field(description="Of the drafted study.")] = "meds-fluids"
    # What begins a stay, an admission or an onset, is for the map to say.
    time_zero: Annotated[
        Literal["onset", "admission"], Field(description="For the dictionary: what [meds] begin stands for.")
    ] = "admission"
    site_covariates: Annotated[
        tuple[SiteCovariate, ...], Field(description="What is the same for all stays of a site: flow.")
    ] = tuple(one for one in SITE_COVARIATES if one.name == "flow")
    meds: Annotated[Meds, Field(description="What the codes mean.")]

    @model_validator(mode="after")
    def _check_meds(self) -> Self:
        charted = {one.name for one in self.meds.charted}
        lost = [one.name for one in self.charted if one.name not in charted]
        if lost:
            raise ValueError(f"[[meds.charted]] has no codes for {lost[0]!r}")
        unknown = [one.name for one in self.meds.doses if one.name not in self.dose.names]
        if unknown:
            raise ValueError(f"[[meds.doses]] has the kind {unknown[0]!r}, which [dose] names does not add up")
        other = [one.name for one in self.site_covariates if one.name != "flow"]
        if other:
            raise ValueError(f"MEDS events give no site covariate {other[0]!r}; flow can be had")
        if self.site_covariates and not self.meds.leave:
            raise ValueError(
                "flow is a share of patients' time, which needs events that end a stay: add them as [meds] leave, or "
                "write site_covariates = []"
            )
        return self

    @property
    def zero(self) -> str:
        """When step 0 begins, in words."""
        return f"{self.time_zero}: the event that begins the stay"


EXAMPLE: dict[str, Any] = {
    "begin": ["ICU_ADMISSION//*"],
    "leave": ["ICU_DISCHARGE//*"],
    "site_part": 2,
    "charted": [
        {"name": "weight", "codes": ["VITAL//weight_kg"]},
        {"name": "temperature", "codes": ["VITAL//temp_c"]},
        {"name": "sbp", "codes": ["VITAL//sbp"]},
        {"name": "hemoglobin", "codes": ["LAB//hemoglobin"]},
        {"name": "potassium", "codes": ["LAB//potassium"]},
        {"name": "lactate", "codes": ["LAB//lactate"]},
    ],
    "doses": [
        {
            "name": "crystalloid",
            "codes": ["INFUSION_START//sodium_chloride"],
            "kind": "rate",
            "stop": ["INFUSION_END//sodium_chloride"],
        },
        {"name": "colloid", "codes": ["BOLUS//albumin"]},
    ],
}
"""A map to start from; every dataset has codes of its own."""


def example() -> MedsExtraction:
    """Settings that load, with a map to be replaced."""
    return MedsExtraction.model_validate({"meds": EXAMPLE})
