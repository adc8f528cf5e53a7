"""LDTR, messages' sums and FDTR of many small sites in one table, at once: for simulations, and for one data holder.

A study of phones or watches has thousands of sites with a few dozen patients or days each. One by one they cost
milliseconds of Python each; here they are fitted in batches, with the same results up to rounding.

This is what `fit_local`, `fdtr.combine` and `fit_federated` do for every site of a table that one party holds, and no
more: the summaries are not checked for disclosure, nothing is recorded in a ledger, and nothing here can be written as
a message. A site that is on its own releases its message as every site does (`fdtr.exchange.release_message`).
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fdtr import __version__, container
from fdtr.algebra.threads import for_chunks, on_one_blas_thread
from fdtr.errors import ChangedSummary, InvalidSettings, OtherStudy, UnknownSite
from fdtr.learners.backward import Settings
from fdtr.learners.batched_fits import ManyFits, ManyOthers, ManySums, batches, fit_batch
from fdtr.policy import Policy
from fdtr.site.fitting import as_written
from fdtr.site.rows import require_rows
from fdtr.site.settings_choice import fixed_pessimism, message_settings, settings_of
from fdtr.study import Study
from fdtr.summary import SiteSummary, Total
from fdtr.sums import Sums, full_matrices, triangle
from fdtr.trajectories import Trajectories
from fdtr.tuning import Candidate

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class ManyPolicies:
    """The policies of many sites as arrays, in the order of `sites`.

    `theta` (K, H, d), `scale` α (K, H), and `precision` (K, H, d(d+1)/2), the upper triangles of Σ.
    """

    study: Study
    method: str
    sites: tuple[str, ...]
    chosen: Candidate
    theta: Array
    precision: Array
    scale: Array
    offset: float
    _places: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_places", {site: place for place, site in enumerate(self.sites)})

    def policy(self, site: str) -> Policy:
        """The policy of one site, as `fit_local` or `fit_federated` gives it."""
        place, study = self.place(site), self.study
        return Policy(
            study=study.public,
            fingerprint=study.fingerprint,
            site=site,
            method=self.method,
            version=__version__,
            theta=self.theta[place].copy(),
            precision=full_matrices(self.precision[place], study.feature_map.n_features),
            scale=tuple(self.scale[place].tolist()),
            offset=self.offset,
            settings={"pessimism": as_written(_settings(study).pessimism), **vars(self.chosen)},
        )

    def place(self, site: str) -> int:
        """Position of a site."""
        if site not in self._places:
            raise UnknownSite(f"There is no fit of site {site!r} among these {len(self.sites):,} sites.")
        return self._places[site]


@dataclass(frozen=True, eq=False, repr=False)
class ManyLocalFits(ManyPolicies):
    """LDTR at many sites, with the sums that each could send, not checked for disclosure."""

    sums: ManySums
    digests: tuple[str, ...]

    def summary(self, site: str) -> SiteSummary:
        """The summary of one site, as `fit_local` gives it."""
        return SiteSummary(site, self.study.fingerprint, self.sums.of(self.place(site)))

    def total(self) -> Total:
        """The sums of all sites, added in the order of their names, as `fdtr.combine` adds their summaries."""
        sums = self.sums.of(0)
        packed = sums.packed()
        for place in range(1, len(self.sites)):
            for name, array in self.sums.packed(place).items():
                np.add(packed[name], array, out=packed[name])
        return Total(self.study.fingerprint, tuple(zip(self.sites, self.digests, strict=True)), Sums.unpacked(packed))


@on_one_blas_thread
def fit_many(study: Study, data: Trajectories) -> ManyLocalFits:
    """Fit LDTR (Algorithm 1) at every site of a table, and compute the sums that each could send.

    The study fixes all settings. Policies and sums equal those of `fit_local` up to rounding. The help of
    `fit_many_federated` goes on with this example.

    >>> import fdtr, pyarrow as pa
    >>> from fdtr.simulation import WorldSpec, make_world
    >>> world = make_world(WorldSpec(n_sites=50, horizon=2, n_actions=2), np.random.default_rng(1))
    >>> fixed = {"pessimism": 0.005, "ridge": 0.1, "sharing": 1.0, "share": "value"}
    >>> study = fdtr.Study.model_validate(world.study(**fixed))
    >>> data = fdtr.read_trajectories(pa.table(world.table(40, np.random.default_rng(2))), study)
    >>> fit_many(study, data).total().sums.n
    array([2000., 2000.])
    """
    require_rows(study, data)
    alone, settings, untuned = _fixed(study, alone=True), _settings(study), message_settings(study)
    fitted = _Fitted(study, data, with_sums=True)
    fitted.run(untuned)
    sums, digests = fitted.summaries()
    if settings != untuned:
        fitted = _Fitted(study, data)
        fitted.run(settings)
    return ManyLocalFits(study, "LDTR", data.sites, alone, *fitted.arrays, sums, digests)


@on_one_blas_thread
def fit_many_federated(
    study: Study, data: Trajectories, local: ManyLocalFits, total: Total | None = None
) -> ManyPolicies:
    """Fit FDTR (Algorithm 2) at every site of a table, with the total of all; `local` is what `fit_many` made of it.

    Each site subtracts its own summary from the total, which must contain it; None is the total of these sites. The
    policies equal those of `fit_federated` up to rounding.

    >>> import fdtr, pyarrow as pa
    >>> from fdtr.simulation import WorldSpec, make_world
    >>> world = make_world(WorldSpec(n_sites=50, horizon=2, n_actions=2), np.random.default_rng(1))
    >>> fixed = {"pessimism": 0.005, "ridge": 0.1, "sharing": 1.0, "share": "value"}
    >>> study = fdtr.Study.model_validate(world.study(**fixed))
    >>> data = fdtr.read_trajectories(pa.table(world.table(40, np.random.default_rng(2))), study)
    >>> local = fit_many(study, data)
    >>> together = fit_many_federated(study, data, local)
    >>> together.theta.shape == (50, 2, study.feature_map.n_features)
    True
    >>> own = local.summary("site-07")
    >>> alike = fdtr.fit_federated(study, data.by_site()["site-07"], local.total(), own)
    >>> np.allclose(together.policy("site-07").theta, alike.theta)
    True
    """
    require_rows(study, data)
    together, settings = _fixed(study), _settings(study)
    total = local.total() if total is None else total
    _require_members(study, data, local, total)
    fitted = _Fitted(study, data)
    fitted.run(settings, together, total, local.sums)
    return ManyPolicies(study, "FDTR", data.sites, together, *fitted.arrays)


class _Fitted:
    """Arrays of all sites, filled in batch by batch."""

    def __init__(self, study: Study, data: Trajectories, *, with_sums: bool = False) -> None:
        n_sites, horizon, d = len(data.sites), study.horizon, study.feature_map.n_features
        self._study, self._data, self._with_sums = study, data, with_sums
        self._theta, self._scale = np.empty((n_sites, horizon, d)), np.empty((n_sites, horizon))
        self._precision = np.empty((n_sites, horizon, d * (d + 1) // 2))
        self._sums = ManySums.empty(n_sites, horizon, study.feature_map.n_shared) if with_sums else None
        self._digests = [""] * n_sites

    @property
    def arrays(self) -> tuple[Array, Array, Array, float]:
        """θ, Σ, α and the offset."""
        offset = (self._study.horizon + 1) * self._study.learning.misspecification
        return self._theta, self._precision, self._scale, offset

    def summaries(self) -> tuple[ManySums, tuple[str, ...]]:
        """The sums, and the digests of the summaries."""
        if self._sums is None:
            raise ValueError("No sums were asked for.")
        return self._sums, tuple(self._digests)

    def run(
        self,
        settings: Settings,
        chosen: Candidate | None = None,
        total: Total | None = None,
        own: ManySums | None = None,
    ) -> None:
        """Fit all batches on all cores: alone, or with the others of `total` as `chosen`, where `own` are the sums."""
        features, sites = self._study.feature_map, self._data.sites
        rows, columns = triangle(features.n_features)

        def fit(part: NDArray[np.intp]) -> tuple[NDArray[np.intp], ManyFits, Array, list[str]]:
            of_part = self._data.of_sites([sites[place] for place in part])
            if chosen is None or total is None or own is None:
                fits = fit_batch(of_part, features, settings, with_sums=self._with_sums)
            else:
                others = _others(total.sums, own.take(part))
                fits = fit_batch(of_part, features, settings, others, chosen.sharing, chosen.share)
            digests = [] if fits.sums is None else [self._digest(sites[p], fits.sums, i) for i, p in enumerate(part)]
            return part, fits, fits.precision[:, :, rows, columns], digests

        def keep(result: tuple[NDArray[np.intp], ManyFits, Array, list[str]]) -> None:
            part, fits, precision, digests = result
            place = slice(part[0], part[-1] + 1) if part[-1] - part[0] < len(part) else part  # a slice is copied faster
            self._theta[place], self._precision[place], self._scale[place] = fits.theta, precision, fits.scale
            if self._sums is not None and fits.sums is not None:
                self._sums.put(place, fits.sums)
                for site, digest in zip(part, digests, strict=True):
                    self._digests[site] = digest

        for_chunks(fit, keep, batches(self._data.n_by_site))

    def _digest(self, site: str, sums: ManySums, place: int) -> str:
        """As `SiteSummary.digest`."""
        return container.digest({"site": site, "fingerprint": self._study.fingerprint}, sums.packed(place))


def _others(total: Sums, own: ManySums) -> ManyOthers:
    """The others of each site: the total less its own sums."""
    d = total.n_shared
    schur = full_matrices(own.schur.reshape(-1, own.schur.shape[2]), d).reshape(*own.schur.shape[:2], d, d)
    return ManyOthers(
        total.schur - schur,
        total.schur_moment - own.schur_moment,
        total.schur_reward - own.schur_reward,
        total.n[0] - own.n[:, 0],
    )


def _require_members(study: Study, data: Trajectories, local: ManyLocalFits, total: Total) -> None:
    """Refuse a total from which the sites could not subtract their own summaries."""
    if not total.fingerprint == local.study.fingerprint == study.fingerprint:
        raise OtherStudy("The fits or the total belong to another study. Make them with this one.")
    if total.resolution or total.removed or total.mean_weight != 1.0:
        raise OtherStudy(
            "The total is not one of exact sums: it has weights, or comes from a secure sum. Fit its sites one by one."
        )
    members = dict(total.members)
    if data.sites != local.sites or any(
        members.get(site) != digest for site, digest in zip(local.sites, local.digests, strict=True)
    ):
        raise ChangedSummary(
            "The total does not contain the summaries of these sites as `fit_many` made them. Make both of one table."
        )


def _fixed(study: Study, *, alone: bool = False) -> Candidate:
    """The study's own settings; refuses one that leaves any open, or whose summaries are not those of one fit."""
    learning, section = study.learning, study.disclosure
    if (
        learning.ridge == "auto" or learning.sharing == "auto" or learning.share == "auto" or
        learning.pessimism == "auto"
    ):  # fmt: skip
        settings = ("pessimism", "ridge", "sharing", "share")
        left_open = ", ".join(name for name in settings if getattr(learning, name) == "auto")
        raise InvalidSettings(
            f"Many sites are fitted at once with the study's own settings, and this study leaves {left_open} open "
            '("auto"). State them under [learning], or fit the sites one by one.'
        )
    if section.epsilon is not None or section.payload == "gram" or section.small_step == "withhold":
        raise InvalidSettings(
            "Many sites are fitted at once only where summaries are exact sums of all steps: without epsilon, "
            'payload = "gram" or small_step = "withhold" under [disclosure]. Fit the sites one by one.'
        )
    return Candidate(learning.ridge, 0.0 if alone else learning.sharing, learning.share)


def _settings(study: Study) -> Settings:
    pessimism, ridge = fixed_pessimism(study), _fixed(study).ridge
    return settings_of(study, ridge, 0.0 if pessimism is None else pessimism)
