"""The settings of an extraction from CLIF tables: what a hospital calls units, charts and fluids."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from fdtr.cohort.printing import Setting
from fdtr.cohort.settings import SITE_COVARIATES, Extraction, Hours, Name, SiteCovariate
from fdtr.study.sections import Flag, Number, Text, Whole

VITALS = {"weight": "weight_kg", "temperature": "temp_c", "sbp": "sbp"}
LABS = {"hemoglobin": "hemoglobin", "potassium": "potassium", "lactate": "lactate"}
STANDARD = {"hemoglobin": "g/dL", "potassium": "mEq/L", "lactate": "mmol/L"}
CONVERSIONS = {
    "hemoglobin": {"g/L": 0.1, "mmol/L": 1.6114},  # mmol of the monomer
    "potassium": {"mmol/L": 1.0},
    "lactate": {"mEq/L": 1.0, "mg/dL": 0.1110},
}
"""What a result is multiplied by, to be in the STANDARD unit of its category."""

TRIPS = ("procedural", "radiology", "dialysis")
FLUIDS = {
    "sodium_chloride": "crystalloid",
    "lactated_ringers_solution": "crystalloid",
    "plasma_lyte": "crystalloid",
    "albumin": "colloid",
    "albumin_infusion": "colloid",
}
"""5% dextrose is not among them: it carries drugs and corrects sodium, and resuscitates nobody."""


class Clif(Setting):
    """What a hospital's CLIF tables call things. Categories are compared in small letters, spaces as underscores."""

    locations: Annotated[tuple[Text, ...], Field(min_length=1, description="location_category of a stay's units.")] = (
        "icu",
    )
    unit: Annotated[
        Literal["location_name", "location_type", "location_category", "hospital_id"],
        Field(description="The column of the ADT table that names a stay's site."),
    ] = "location_name"
    gap_hours: Annotated[Hours, Field(description="Between two units of one stay, at most.")] = 1.0
    trips: Annotated[
        tuple[Text, ...], Field(description="location_category of trips from a unit and back, which end no stay.")
    ] = TRIPS
    admission: Annotated[
        Literal["unit", "hospital"], Field(description='With time_zero = "admission": to the unit, or to the hospital.')
    ] = "unit"
    delay_hours: Annotated[
        Number, Field(ge=0, le=100_000, description="Step 0 begins so long after admission, or after the onset.")
    ] = 0.0
    youngest: Annotated[Whole, Field(ge=0, description="Years at admission.")] = 18
    first_stay: Annotated[Flag, Field(description="Only the first stay of each person.")] = True
    smallest_site: Annotated[Whole, Field(ge=1, description="Sites with fewer stays leave the cohort.")] = 1
    diagnoses: Annotated[
        tuple[Text, ...], Field(description="ICD codes, or what they begin with; empty: all stays.")
    ] = ()
    vitals: Annotated[dict[Name, Text], Field(description="vital_category of each covariate.")] = VITALS
    labs: Annotated[dict[Name, Text], Field(description="lab_category of each covariate, or of the outcome.")] = LABS
    conversions: Annotated[
        dict[Text, dict[Text, Annotated[Number, Field(gt=0)]]],
        Field(description="What a lab_category's result in another unit than the covariate's is multiplied by."),
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
    longest_hours: Annotated[Hours, Field(description="A rate that is not charted anew for longer is not held.")] = 24.0

    @model_validator(mode="before")
    @classmethod
    def _fill_tables(cls, given: Any) -> Any:
        """A table changes what it names and keeps the rest. A covariate that moves is read from one table only."""
        if not isinstance(given, Mapping):
            return given
        filled = dict(given)
        for name, other, default in (("vitals", "labs", VITALS), ("labs", "vitals", LABS)):
            moved = given.get(other)
            kept = {k: v for k, v in default.items() if not isinstance(moved, Mapping) or k not in moved}
            if isinstance(given.get(name, {}), Mapping):
                filled[name] = {**kept, **given.get(name, {})}
        if isinstance(given.get("fluids"), Mapping):
            filled["fluids"] = {**FLUIDS, **given["fluids"]}
        if isinstance(given.get("conversions"), Mapping):
            changed = given["conversions"]
            both = {
                category: {**CONVERSIONS.get(category, {}), **units}
                for category, units in changed.items()
                if isinstance(units, Mapping)
            }
            filled["conversions"] = {**CONVERSIONS, **changed, **both}
        return filled


class ClifExtraction(Extraction):
    """All settings of an extraction from CLIF tables.

    >>> ClifExtraction().clif.unit
    'location_name'
    """

    SOURCE: ClassVar[Literal["mimic-iv", "clif", "meds"]] = "clif"

    name: Annotated[Text, Field(description="Of the drafted study.")] = "icu-fluids"
    # CLIF has no onset of sepsis: a list has to give it.
    time_zero: Annotated[
        Literal["onset", "admission"],
        Field(description="When step 0 begins: admission, or the onset on a list (--onsets), if that is later."),
    ] = "admission"
    # Every unit is an ICU unless [clif] locations says otherwise, and then no_icu tells nothing.
    site_covariates: Annotated[
        tuple[SiteCovariate, ...], Field(description="What is the same for all stays of a site: flow, no_icu.")
    ] = tuple(one for one in SITE_COVARIATES if one.name != "no_icu")
    clif: Annotated[Clif, Field(description="What the hospital's CLIF tables call things.")] = Clif()

    @model_validator(mode="after")
    def _check_clif(self) -> Self:
        both = [one for one in self.clif.trips if one in self.clif.locations]
        if both:
            raise ValueError(f"[clif] has {both[0]!r} under locations and under trips: leave it out of one of them")
        charted = {*self.clif.vitals, *self.clif.labs}
        lost = [one.name for one in self.charted if one.name not in charted]
        if lost:
            raise ValueError(f"[clif] names no category for {lost[0]!r}: add it to vitals or labs")
        unknown = [one.name for one in self.site_covariates if one.name not in ("no_icu", "flow")]
        if unknown:
            raise ValueError(f"CLIF tables give no site covariate {unknown[0]!r}; no_icu and flow can be had")
        return self

    @property
    def begin(self) -> Literal["unit", "hospital", "onset"]:
        """What step 0 begins with, or the delay before it."""
        return "onset" if self.time_zero == "onset" else self.clif.admission

    @property
    def zero(self) -> str:
        """When step 0 begins, in words."""
        delay = f"{self.clif.delay_hours:g} hours after " if self.clif.delay_hours else ""
        if self.begin == "onset":
            return f"{delay}the listed onset, or admission to the unit where that is later"
        return f"{delay}admission to the {self.begin}"
