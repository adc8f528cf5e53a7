"""The study file: everything that is public and the same at every site, in one TOML file.

It lists covariates, actions and rewards with their bounds, the settings of the method, and the thresholds of the
disclosure rules. Nothing in it is learnt from data, so one round of messages is enough. Every message and policy
carries its fingerprint, and parts with different fingerprints are refused.
"""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError, field_validator, model_validator

from fdtr import container
from fdtr.disclosure import Rules, required_sites
from fdtr.disclosure.common_repairs import CommonRepairs, agree
from fdtr.disclosure.masked_counts import CountLayout, SiteCounts
from fdtr.errors import InvalidStudy, OtherStudy, UnreadableFile
from fdtr.features import FeatureMap, build_features
from fdtr.masking import FEWEST_HONEST
from fdtr.signing import HUB, check_name, public_bytes
from fdtr.study.sections import (
    MOST_STEPS,
    Actions,
    CategoricalBasis,
    Columns,
    Covariate,
    Disclosure,
    Evaluation,
    Features,
    Learning,
    Number,
    Reward,
    Section,
    Text,
    Whole,
)
from fdtr.study.validation_messages import nearest, readable
from fdtr.trajectories import Covariate as CovariateLayout
from fdtr.trajectories import TableLayout

MOST_STUDY_BYTES = 2**20
_FIRST = "The study comes first among a command's files."
_ROSTER_TABLE = re.compile(r"^\s*\[\s*roster\s*\]\s*(#.*)?$")
_ANY_TABLE = re.compile(r"^\s*\[")


class Study(Section):
    """A whole study file. `Study.load` reads one; `Study.model_validate` builds one from a dictionary.

    >>> study = Study.model_validate({
    ...     "name": "fluids", "horizon": 5, "actions": {"levels": [0, 1]},
    ...     "covariates": [{"name": "sbp", "range": [40, 220]}],
    ... })
    >>> study.learning.pessimism
    'auto'
    >>> study.fingerprint[:12]
    'c1a1cfcad523'
    """

    format: Literal[1] = 1
    name: Text
    horizon: Annotated[Whole, Field(ge=1, le=MOST_STEPS, description="Steps of a full trajectory.")]
    columns: Columns = Columns()
    actions: Actions
    covariates: tuple[Covariate, ...]
    features: Features = Features()
    reward: Reward = Reward()
    ends: Annotated[
        dict[Text, Annotated[Number, Field(ge=0, le=1)]],
        Field(description="What each missing step is worth, on [0, 1], by how a trajectory ended."),
    ] = Field(default_factory=dict)
    learning: Learning = Learning()
    disclosure: Disclosure = Disclosure()
    evaluation: Evaluation = Evaluation()
    roster: Annotated[
        dict[Text, Text], Field(description="The public key of each site, and of the hub; not in the fingerprint.")
    ] = Field(default_factory=dict)

    @field_validator("roster")
    @classmethod
    def _check_roster(cls, roster: dict[str, str]) -> dict[str, str]:
        for site, key in roster.items():
            check_name(site)
            try:
                public_bytes(key)
            except ValueError as error:
                raise ValueError(f"{site}: {error}") from None
        shared = [site for site, key in roster.items() if list(roster.values()).count(key) > 1]
        if shared:
            raise ValueError(f"{' and '.join(shared)} have the same key; each needs one of its own")
        return dict(sorted(roster.items()))

    @model_validator(mode="after")
    def _check_whole(self) -> Self:
        names = [covariate.name for covariate in self.covariates]
        twice = [name for i, name in enumerate(names) if name in names[:i]]
        if twice:
            raise ValueError(f"covariate {twice[0]!r} is listed twice")
        reserved = [name for name in names if name in self.columns.by_role]
        if reserved:
            raise ValueError(f"a covariate may not be called {reserved[0]!r}: that is a column's role")
        if not names and self.features.intercept == "none":
            raise ValueError("there is no feature at all, neither shared nor specific: list a covariate")
        if not names:
            raise ValueError("list at least one covariate: without a state every patient is the same")
        if self.features.intercept == "none" and not any(covariate.interacts for covariate in self.covariates):
            raise ValueError("no feature has an action term, so no action could be preferred: let a covariate interact")
        if self.disclosure.secure_sum and self.features.scale != "unit":
            raise ValueError('secure_sum needs [features] scale = "unit": it bounds the sums that are added')
        if self.disclosure.epsilon is not None and self.features.scale != "unit":
            raise ValueError('epsilon needs [features] scale = "unit": it bounds what one patient adds to the sums')
        if self.disclosure.secure_sum:
            self._check_resolution()
        self._check_columns(names)
        self._check_groups()
        features = self.feature_map.names
        twice = sorted({name for name in features if features.count(name) > 1})
        if twice:
            raise ValueError(f"two features would be called {twice[0]!r}: rename a covariate")
        return self

    def _check_resolution(self) -> None:
        """Refuse a secure sum whose fixed-point numbers would be too coarse, before anybody makes keys for it."""
        from fdtr.masking import FEWEST_HONEST, FixedPoint

        section = self.disclosure
        sites = max(section.min_sites, FEWEST_HONEST + section.colluding, len(self.roster) - (HUB in self.roster))
        FixedPoint(self.horizon, 0, sites, section.max_patients or 1)

    def _check_columns(self, names: list[str]) -> None:
        extra = self.columns.model_extra or {}
        for key, column in extra.items():
            if key not in names:
                raise ValueError(f"[columns] has the unknown key {key!r}{nearest(key, [*Columns.ROLES, *names])}")
            if not isinstance(column, str) or not column:
                raise ValueError(f"[columns] {key}: give the name of a column")
        used = [self.columns.of(name) for name in names]
        used += [column for role, column in self.columns.by_role.items() if role != "end" or self.ends]
        twice = sorted({column for column in used if used.count(column) > 1})
        if twice:
            raise ValueError(f"[columns] reads the column {twice[0]!r} for two different things")

    def _check_groups(self) -> None:
        covariates = {covariate.name: covariate for covariate in self.covariates}
        for name, cuts in self.evaluation.groups.items():
            if name not in covariates:
                raise ValueError(f"[evaluation] groups: {name!r} is no covariate{nearest(name, list(covariates))}")
            low, high = covariates[name].range
            if any(not low < cut <= high for cut in cuts):
                raise ValueError(f"[evaluation] groups: {name} has cuts outside its range [{low:g}, {high:g}]")
            if not cuts and not isinstance(covariates[name].basis, CategoricalBasis):
                raise ValueError(f"[evaluation] groups: {name} has no levels; list cuts between its bands")

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """Build a study from a dictionary; raises InvalidStudy with one line for each fault.

        >>> Study.model_validate({"name": "x", "horizn": 5, "actions": {"levels": [0, 1]}, "covariates": []})
        Traceback (most recent call last):
        fdtr.errors.InvalidStudy: The study is not valid:
          horizon: is required
          horizn: unknown key; did you mean "horizon"?
        """
        try:
            return super().model_validate(obj, **options)
        except ValidationError as error:
            raise InvalidStudy("The study is not valid:\n" + "\n".join(readable(error, cls, obj))) from None

    @classmethod
    @lru_cache(maxsize=8)
    def _parsed(cls, content: bytes) -> Self:
        """Cached: every step of a round reads the study again, and a roster of a thousand sites takes a while."""
        return cls.model_validate(tomllib.loads(content.decode("utf-8-sig")))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a study file; raises InvalidStudy with one line for each fault.

        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder) / "study.toml"
        ...     _ = path.write_text('''
        ...         name = "fluids"
        ...         horizon = 2
        ...         [actions]
        ...         levels = [0, 1]
        ...         [[covariates]]
        ...         name = "sbp"
        ...         range = [40, 220]
        ...     ''')
        ...     study = Study.load(path)
        >>> study.feature_map.n_features
        6
        """
        try:
            content = read_study_bytes(path)
        except UnreadableFile as error:
            raise type(error)(f"The study file could not be read: {error} {_FIRST}") from None
        return cls.parse(content, path)

    @classmethod
    def parse(cls, content: bytes, source: str | Path) -> Self:
        """The study in a file's content; `source` names the file in a refusal."""
        try:
            return cls._parsed(content)
        except UnicodeDecodeError:
            raise UnreadableFile(
                f"The study file {source} could not be read: it is not text in UTF-8. {_FIRST}"
            ) from None
        except InvalidStudy as error:
            raise InvalidStudy(f"{source}: {error}") from None
        except (ValueError, RecursionError) as error:
            known = isinstance(error, tomllib.TOMLDecodeError)
            reason = str(error) if known else "it is nested too deeply, or has a number of too many digits"
            raise InvalidStudy(f"{source} is not valid TOML: {reason}.") from None

    def save(self, path: str | Path) -> None:
        """Write the study with all its fields, defaults included."""
        container.write_atomically(path, self._toml)

    @cached_property
    def _toml(self) -> bytes:
        import tomli_w

        own = {"columns": self.columns.model_dump(), "evaluation": self.evaluation.model_dump(mode="json")}
        fields = {**self.public, **own, "roster": self.roster}
        ordered = {name: _without_none(fields[name]) for name in type(self).model_fields}
        return tomli_w.dumps(ordered).encode()

    @cached_property
    def public(self) -> dict[str, Any]:
        """Every field but [columns], [evaluation] and [roster], defaults included: what the fingerprint covers."""
        dumped = self.model_dump(mode="json", exclude={"columns", "evaluation", "roster"})
        # These two were added later: left out at their defaults, they do not change older fingerprints.
        if not self.disclosure.colluding:
            del dumped["disclosure"]["colluding"]
        if not self.actions.cuts:
            del dumped["actions"]["cuts"]
        return dict(json.loads(container.canonical_json(dumped)))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the canonical JSON (RFC 8785) of `public`, in hex."""
        return container.fingerprint(self.public)

    @cached_property
    def evaluation_fingerprint(self) -> str:
        """SHA-256 of [evaluation]: values that were made in different ways are not pooled."""
        return container.fingerprint(self.evaluation.model_dump(mode="json"))

    @cached_property
    def feature_map(self) -> FeatureMap:
        """φ, as this study describes it."""
        return build_features(self.public["actions"], self.public["covariates"], self.public["features"])

    @cached_property
    def feature_fingerprint(self) -> str:
        """SHA-256 of what defines φ: studies that differ only in labels, order or thresholds have the same one."""
        public = self.public
        actions = {key: value for key, value in public["actions"].items() if key not in ("labels", "cuts")}
        if actions["basis"] != "polynomial":
            del actions["degree"]
        covariates = [{key: value for key, value in c.items() if key != "level"} for c in public["covariates"]]
        covariates.sort(key=lambda covariate: str(covariate["name"]))
        return container.fingerprint({"actions": actions, "covariates": covariates, "features": public["features"]})

    @cached_property
    def rules(self) -> Rules:
        """The disclosure rules with this study's thresholds; unit scaling bounds ‖φ‖ by 1."""
        return self.rules_among()

    def rules_among(self, n_sites: int | None = None) -> Rules:
        """The rules where `n_sites` take part in a secure sum: those of the roster, whatever is given, if there is one.

        Before counts are opened a site reckons with two thirds of them, and with as few as may be where nobody knows
        how many there are: some only receive or drop out, some are small, and counts are rounded down.
        """
        section, on_roster = self.disclosure, len(self.roster) - (HUB in self.roster)
        subtracting = 1 + section.colluding
        reckoned_with = max(2 * (on_roster or n_sites or 0) // 3, self.fewest_in_sum)
        unit_bound = 1.0 if self.features.scale == "unit" else None
        return Rules(
            payload=section.payload,
            min_patients=section.min_patients,
            max_ratio=section.max_ratio,
            min_action=section.min_action,
            min_cell=section.min_cell,
            max_leverage=section.max_leverage,
            norm_bound=unit_bound if section.norm_bound is None else section.norm_bound,
            max_patients=section.max_patients,
            small_step=section.small_step,
            noised=section.epsilon is not None,
            jitter=section.jitter,
            max_membership=section.max_membership,
            alone=not section.secure_sum,
            fewest_left=self.fewest_in_sum - subtracting,
            sites_left=reckoned_with - subtracting,
        )

    @property
    def required_sites(self) -> int:
        """How many sites rule SITES asks for in a total, and in each column of it."""
        return required_sites(self.disclosure.min_sites, self.site_level_covariates)

    @property
    def fewest_in_sum(self) -> int:
        """How many sites a secure sum needs: what rule SITES asks for, and three that do not collude."""
        return max(self.required_sites, FEWEST_HONEST + self.disclosure.colluding)

    @property
    def site_level_covariates(self) -> int:
        """q0, the shared covariates that are constant within a site."""
        return sum(c.effect == "shared" and c.level == "site" for c in self.covariates)

    @cached_property
    def count_layout(self) -> CountLayout:
        """The order of the counts on which a secure sum of this study is judged."""
        return CountLayout(self.feature_map, self.rules, self.horizon)

    def common_repairs(self, opened: NDArray[np.uint64], n_sites: int) -> CommonRepairs:
        """What all sites take out of a secure sum, from the opened total of the counts of `n_sites` sites."""
        counts = self.count_layout.decode(opened, n_sites)
        return agree(self.count_layout, counts, self.fewest_in_sum, self.disclosure.colluding)

    def combine_counts(self, counts: Sequence[SiteCounts]) -> CommonRepairs:
        """What all sites would take out of a secure sum, where the counts of all are at hand, as in `fdtr run`."""
        vectors = [self.count_layout.encode(site, lambda size: b"\1" * size) for site in counts]
        return self.common_repairs(np.sum(vectors, axis=0, dtype=np.uint64), len(vectors))

    @property
    def counts_first(self) -> bool:
        """Whether a round opens totals of counts before sums are masked: in secure sums that are judged by block."""
        return self.disclosure.secure_sum and self.rules.by_block

    @property
    def mean_weight(self) -> float:
        """The mean weight of rows in this study's messages: 1 without weights."""
        return 1.0 - self.disclosure.jitter / 2 if self.rules.weighted else 1.0

    @cached_property
    def table_layout(self) -> TableLayout:
        """Columns, ranges and levels that a table of this study must have."""
        return TableLayout(
            horizon=self.horizon,
            covariates=tuple(
                CovariateLayout(
                    name=covariate.name,
                    column=self.columns.of(covariate.name),
                    low=covariate.range[0],
                    high=covariate.range[1],
                    levels=covariate.basis.levels if isinstance(covariate.basis, CategoricalBasis) else None,
                    missing=covariate.missing,
                    constant_within_site=covariate.level == "site",
                )
                for covariate in self.covariates
            ),
            action_levels=self.actions.levels,
            reward_low=self.reward.range[0],
            reward_high=self.reward.range[1],
            ends=self.ends,
            **self.columns.by_role,
        )

    def require_shared(self) -> None:
        """Refuse a study without shared effects: sites would learn nothing from each other."""
        if not self.feature_map.n_shared:
            raise InvalidStudy(
                f"The study {self.name!r} shares no effect, so nothing would be learnt together. Nothing was written. "
                'Set effect = "shared" for covariates that do the same at every site, and give that file to all sites.'
            )

    def check_shape(self, horizon: int, n_shared: int) -> None:
        """Refuse sums whose horizon or number of shared features is not this study's."""
        expected = (self.horizon, self.feature_map.n_shared)
        if (horizon, n_shared) != expected:
            raise OtherStudy(
                f"The sums have {horizon} steps and {n_shared} shared features; the study has {expected[0]} and "
                f"{expected[1]}. They belong to another study."
            )


def require_study(study: Study) -> None:
    """Refuse anything but a Study."""
    if not isinstance(study, Study):
        raise TypeError(
            f"A Study is needed, not {type(study).__name__}: Study.load(path) or Study.model_validate({{…}})."
        )


def read_study_bytes(path: str | Path, beneath: Path | None = None) -> bytes:
    """The bytes of a study file; `beneath` as for `container.opened`."""
    return container.read_bounded(path, MOST_STUDY_BYTES, "a study file", beneath)


def set_roster(path: str | Path, roster: Mapping[str, str]) -> Study:
    """Replace the [roster] of a study file, and return the study as it then is.

    Comments and the order of the file stay. The file is written only if it then reads as the same study with that
    roster.
    """
    content = read_study_bytes(path)
    before, text = Study.parse(content, path), content.decode("utf-8-sig")
    wanted = Study.model_validate({**before.model_dump(), "roster": dict(roster)})
    changed = _with_roster(text, wanted.roster)
    try:
        written = Study.model_validate(tomllib.loads(changed))
    except (InvalidStudy, tomllib.TOMLDecodeError):
        written = None
    if written != wanted:
        raise InvalidStudy(
            f"{path}: its roster is not a table [roster] with a line for each site. It was left as it is. Put it into "
            "that form, at the end of the file."
        )
    container.write_atomically(path, changed.encode(), mode=Path(path).stat().st_mode & 0o777)
    return wanted


def _with_roster(text: str, roster: Mapping[str, str]) -> str:
    """`text` with the lines of its [roster] replaced; a file without one gets it at the end."""
    import tomli_w

    lines = text.splitlines()
    entries = tomli_w.dumps(dict(roster)).splitlines()
    starts = [i for i, line in enumerate(lines) if _ROSTER_TABLE.match(line)]
    if not starts:
        while lines and not lines[-1].strip():
            lines.pop()
        return "\n".join([*lines, "", "[roster]  # who may speak: compare fingerprints by telephone", *entries, ""])
    start = starts[0] + 1
    end = next((i for i in range(start, len(lines)) if _ANY_TABLE.match(lines[i])), len(lines))
    comments = [line for line in lines[start:end] if line.lstrip().startswith("#")]
    rest = lines[end:]
    return "\n".join([*lines[:start], *comments, *entries, *(["", *rest] if rest else []), ""])


def _without_none(value: Any) -> Any:
    """A table without its None fields: TOML has no null, and an absent field reads as None again."""
    return {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else value
