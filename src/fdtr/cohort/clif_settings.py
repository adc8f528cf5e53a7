"""Settings of an extraction from CLIF tables: the names of units, charted quantities and fluids."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from fdtr.cohort.extraction_settings import (
    SITE_COVARIATES,
    ExtractionSettings,
    Hours,
    Name,
    SiteCovariate,
    SourceName,
    with_defaults,
)
from fdtr.cohort.settings_toml import Setting
from fdtr.study.sections import Flag, Number, Text, Whole

VITALS = {"weight": "weight_kg", "temperature": "temp_c", "sbp": "sbp"}
LABS = {"hemoglobin": "hemoglobin", "potassium": "potassium", "lactate": "lactate"}
STANDARD = {"hemoglobin": "g/dL", "potassium": "mEq/L", "lactate": "mmol/L"}
CONVERSIONS = {
    "hemoglobin": {"g/L": 0.1, "mmol/L": 1.6114},  # mmol of the monomer
    "potassium": {"mmol/L": 1.0},
    "lactate": {"mEq/L": 1.0, "mg/dL": 0.1110},
}
"""Factors from other units to the STANDARD unit of a category."""

TRIPS = ("procedural", "radiology", "dialysis")
FLUIDS = {
    "sodium_chloride": "crystalloid",
    "lactated_ringers_solution": "crystalloid",
    "plasma_lyte": "crystalloid",
    "albumin": "colloid",
    "albumin_infusion": "colloid",
}
"""Without 5% dextrose, which carries drugs and corrects sodium but does not resuscitate."""


CODED_LATER = "Diagnoses are coded at discharge, so that a stay may be eligible by what came after time zero."
ALIVE_IN_THE_UNIT = "Who died before reaching the unit is not in the table, though step 0 begins with the hospital."
LISTED_LATER = "Whether the list of onsets looks beyond time zero is for its maker to say."


class Clif(Setting):
    """Names in a hospital's CLIF tables. Categories are compared in lower case, with underscores for spaces."""

    locations: Annotated[tuple[Text, ...], Field(min_length=1, description="location_category of a stay's units.")] = (
        "icu",
    )
    unit: Annotated[
        Literal["location_name", "location_type", "location_category", "hospital_id"],
        Field(description="The column of the ADT table that names a stay's site."),
    ] = "location_name"
    gap_hours: Annotated[Hours, Field(description="Longest gap between two units of one stay.")] = 1.0
    trips: Annotated[
        tuple[Text, ...], Field(description="location_category of trips from a unit and back, which end no stay.")
    ] = TRIPS
    admission: Annotated[
        Literal["unit", "hospital"], Field(description='With time_zero = "admission": to the unit, or to the hospital.')
    ] = "unit"
    delay_hours: Annotated[
        Number, Field(ge=0, le=100_000, description="Hours from admission, or from the onset, to step 0.")
    ] = 0.0
    youngest: Annotated[Whole, Field(ge=0, description="Smallest age at admission, in years.")] = 18
    first_stay: Annotated[Flag, Field(description="Only the first stay of each person.")] = True
    smallest_site: Annotated[Whole, Field(ge=1, description="Sites with fewer stays leave the cohort.")] = 1
    diagnoses: Annotated[
        tuple[Text, ...], Field(description="ICD codes, or what they begin with; empty: all stays.")
    ] = ()
    vitals: Annotated[dict[Name, Text], Field(description="vital_category of each covariate.")] = VITALS
    labs: Annotated[dict[Name, Text], Field(description="lab_category of each covariate, or of the outcome.")] = LABS
    conversions: Annotated[
        dict[Text, dict[Text, Annotated[Number, Field(gt=0)]]],
        Field(description="Factors from other units of a lab_category to the covariate's unit."),
    ] = CONVERSIONS
    fluids: Annotated[
        dict[Text, Name],
        Field(
            description="The kind of dose that each med_category is; a kind that [dose] does not name is not counted."
        ),
    ] = FLUIDS
    carriers: Annotated[
        tuple[Text, ...], Field(description="A fluid whose med_route_name contains this carries a drug: not counted.")
    ] = ("mixed solution",)
    longest_hours: Annotated[Hours, Field(description="Longest time that a rate holds without a new entry.")] = 24.0

    @model_validator(mode="before")
    @classmethod
    def _fill_tables(cls, values: Any) -> Any:
        """A table changes the entries that it names and keeps the other defaults.

        A covariate that a file moves from vitals to labs, or back, is read from the new table only.
        """
        if not isinstance(values, Mapping):
            return values
        labs, vitals = (values[name] if isinstance(values.get(name), Mapping) else {} for name in ("labs", "vitals"))
        defaults = {
            "vitals": {name: category for name, category in VITALS.items() if name not in labs},
            "labs": {name: category for name, category in LABS.items() if name not in vitals},
            "fluids": FLUIDS,
            "conversions": CONVERSIONS,
        }
        return with_defaults(values, defaults)


class ClifSettings(ExtractionSettings):
    """All settings of an extraction from CLIF tables.

    >>> ClifSettings().clif.unit
    'location_name'
    """

    SOURCE: ClassVar[SourceName] = "clif"

    name: Annotated[Text, Field(description="Name of the drafted study.")] = "icu-fluids"
    # CLIF has no onset of sepsis: the user has to list it.
    time_zero: Annotated[
        Literal["onset", "admission"],
        Field(description="When step 0 begins: admission, or the onset on a list (--onsets), if that is later."),
    ] = "admission"
    # By default every unit is an ICU, and no_icu would be constant.
    site_covariates: Annotated[
        tuple[SiteCovariate, ...], Field(description="What is the same for all stays of a site: flow, no_icu.")
    ] = tuple(covariate for covariate in SITE_COVARIATES if covariate.name != "no_icu")
    clif: Annotated[Clif, Field(description="What the hospital's CLIF tables call things.")] = Clif()

    @model_validator(mode="after")
    def _check_clif(self) -> Self:
        repeated = [category for category in self.clif.trips if category in self.clif.locations]
        if repeated:
            raise ValueError(f"[clif] has {repeated[0]!r} under locations and under trips: leave it out of one of them")
        named = {*self.clif.vitals, *self.clif.labs}
        unnamed = [quantity.name for quantity in self.charted if quantity.name not in named]
        if unnamed:
            raise ValueError(f"[clif] names no category for {unnamed[0]!r}: add it to vitals or labs")
        return self

    @property
    def begin(self) -> Literal["unit", "hospital", "onset"]:
        """The event at which step 0 begins, or the delay before step 0."""
        return "onset" if self.time_zero == "onset" else self.clif.admission

    @property
    def zero(self) -> str:
        """When step 0 begins, in words."""
        delay = f"{self.clif.delay_hours:g} hours after " if self.clif.delay_hours else ""
        if self.begin == "onset":
            return f"{delay}the listed onset, or admission to the unit where that is later"
        return f"{delay}admission to the {self.begin}"

    @property
    def looks_ahead(self) -> str:
        """Which rules of eligibility use what came after time zero, in words.

        >>> ClifSettings().looks_ahead
        ''
        """
        later = {"unit": "", "hospital": ALIVE_IN_THE_UNIT, "onset": LISTED_LATER}[self.begin]
        return " ".join(text for text in (CODED_LATER if self.clif.diagnoses else "", later) if text)
