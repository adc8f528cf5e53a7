"""Settings of an extraction from MIMIC-IV: schemas of its tables, and items to read beside the built-in ones."""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fdtr.cohort.extraction_settings import Charted, ExtractionSettings, Name, Sepsis, StateCovariate
from fdtr.cohort.settings_toml import Setting
from fdtr.study.sections import Number, Text, Whole

SCHEMAS = ("mimiciv_icu", "mimiciv_hosp", "mimiciv_derived", "icu", "hosp", "derived", "main", "public")
CONCEPTS = {
    "weight": "chartevents 226512, 224639",
    "temperature": "chartevents 223761 (°F), 223762 (°C)",
    "sbp": "chartevents 220179, 220050, 225309",
    "hemoglobin": "labevents 51222, 50811",
    "potassium": "labevents 50971, 50822",
    "lactate": "labevents 50813",
    "age": "patients: anchor_age, and years from anchor_year to admission; 91 for all above 89",
}
"""Quantities with an SQL file of their own, and the items that it reads."""

FLUIDS = {
    # Saline 0.9% (225158) and 0.45% (225159), Ringer's lactate (225828), dextrose 5% in saline or Ringer's (225823,
    # 225825, 225827, 225941), sterile water (225944), free water (225797), piggyback (226089). Water resuscitates
    # nobody, and piggyback bags carry drugs: the setting not_fluids leaves items out. Dextrose 5% in water is not here.
    "crystalloid": (225158, 225828, 225944, 225797, 225159, 225823, 225825, 225827, 225941, 226089),
    # Albumin 5% (220864) and 25% (220862), hetastarch 6% (225174), dextran (225795, 225796).
    "colloid": (220864, 220862, 225174, 225795, 225796),
}
"""Kinds of dose, and the items of `inputevents` that count as each. The choice is ours."""

LOOKS_AHEAD: Mapping[Sepsis, str] = {
    "sepsis3": "Sepsis-3 by mimic-code counts organ failure up to 24 hours after infection was suspected, so that a "
    "stay may be eligible by what came after time zero.",
    "icd": "ICD codes are given at discharge, so that a stay may be eligible by what came after time zero.",
    "listed": "Whether the list of stays looks beyond time zero is for its maker to say.",
}
"""How each rule about sepsis uses what came after time zero, in words."""

AGE = StateCovariate(name="age", meaning="age at admission", unit="years", plausible=(18.0, 91.0), range=(18.0, 91.0))
"""A covariate that the paper does not have. Add it to those of the settings."""

ItemId = Annotated[Whole, Field(gt=0)]


class ChartedItems(Setting):
    """Items that chart a covariate, or the outcome."""

    name: Annotated[Name, Field(description="The covariate. Several lines may have the same one, for several units.")]
    table: Annotated[Literal["chartevents", "labevents"], Field(description="Where the items are charted.")]
    items: Annotated[tuple[ItemId, ...], Field(min_length=1, description="itemid of each.")]
    factor: Annotated[Number, Field(description="The number is multiplied by this, …")] = 1.0
    shift: Annotated[Number, Field(description="… and this is added, to get the unit of the settings.")] = 0.0

    @property
    def origin(self) -> str:
        """Where the quantity is read, for the dictionary.

        >>> ChartedItems(name="height", table="chartevents", items=(226707,), factor=2.54).origin
        'chartevents 226707 (× 2.54)'
        """
        times = "" if self.factor == 1 else f"× {self.factor:.12g}"
        plus = "" if self.shift == 0 else f"{'+' if self.shift > 0 else '−'} {abs(self.shift):.12g}"
        unit = " ".join(part for part in (times, plus) if part)
        return f"{self.table} {', '.join(map(str, self.items))}{f' ({unit})' if unit else ''}"


class MimicIv(Setting):
    """What is read from MIMIC-IV, and where."""

    schemas: Annotated[
        tuple[Text, ...],
        Field(min_length=1, description="Schemas to search for tables; the first that has a table counts."),
    ] = SCHEMAS
    charted: Annotated[
        tuple[ChartedItems, ...],
        Field(description="Items of covariates that are not built in; a built-in name is then read by these alone."),
    ] = ()
    not_fluids: Annotated[
        tuple[ItemId, ...], Field(description="Items of the built-in fluids that are not to count, by itemid.")
    ] = ()

    @model_validator(mode="after")
    def _check_items(self) -> Self:
        read = [(line.name, line.table, item) for line in self.charted for item in line.items]
        repeated = [line for number, line in enumerate(read) if line in read[:number]]
        if repeated:
            name, table, item = repeated[0]
            raise ValueError(f"item {item} of {table} stands twice for {name!r} under charted")
        others = [item for item in self.not_fluids if not any(item in items for items in FLUIDS.values())]
        if others:
            raise ValueError(f"not_fluids has {others[0]}, which does not count as a fluid anyway")
        return self


class MimicSettings(ExtractionSettings):
    """All settings of an extraction from MIMIC-IV.

    >>> MimicSettings().mimic_iv.schemas[0]
    'mimiciv_icu'
    """

    mimic_iv: MimicIv = MimicIv()

    @model_validator(mode="after")
    def _check_mimic_iv(self) -> Self:
        wanted, lines = [quantity.name for quantity in self.charted], {line.name for line in self.mimic_iv.charted}
        unknown = [name for name in wanted if name not in CONCEPTS and name not in lines]
        if unknown:
            raise ValueError(
                f"{unknown[0]!r} is not built in (known: {', '.join(CONCEPTS)}): name its items under "
                "[[mimic_iv.charted]]"
            )
        unused = sorted(lines - set(wanted))
        if unused:
            raise ValueError(
                f"[[mimic_iv.charted]] has items for {unused[0]!r}, which is no covariate and not the outcome: add it "
                "under [[covariates]]"
            )
        kinds = [name for name in self.dose.names if name not in FLUIDS]
        if kinds:
            raise ValueError(f"MIMIC-IV gives no dose {kinds[0]!r}; {' and '.join(FLUIDS)} can be had")
        return self

    @property
    def concepts(self) -> tuple[str, ...]:
        """Names that are read by their built-in SQL files."""
        lines = {line.name for line in self.mimic_iv.charted}
        return tuple(quantity.name for quantity in self.charted if quantity.name not in lines)

    @property
    def fluids(self) -> list[tuple[str, int]]:
        """Kind and item of each fluid that counts."""
        kinds, excluded = dict.fromkeys(self.dose.names), self.mimic_iv.not_fluids
        return [(kind, item) for kind in kinds for item in FLUIDS[kind] if item not in excluded]

    @property
    def looks_ahead(self) -> str:
        """How the rule about sepsis uses what came after time zero, in words."""
        return LOOKS_AHEAD[self.options.sepsis or "sepsis3"]

    def look_back(self, charted: Charted) -> float:
        """How many hours old a value of `charted` may be. Age at admission never gets too old."""
        hours = super().look_back(charted)
        return max(hours, self.window_hours) if charted.name == "age" and "age" in self.concepts else hours
