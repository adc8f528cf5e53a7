"""The hub's steps: open a folder, list the survivors, add up, begin another round."""

import os
import shlex
from collections.abc import Collection
from pathlib import Path

from fdtr.disclosure.common_repairs import taken_out
from fdtr.errors import NoStudyFolder, OtherRound, OtherStudy, ProtocolViolation, TooFewSurvivors, WrongSite
from fdtr.exchange.atomic_files import clean_up, locked, post
from fdtr.exchange.folder.masked_phase import MaskedPhase, masked_round
from fdtr.exchange.folder.round_files import seal_begun, seal_part
from fdtr.exchange.folder.round_snapshot import (
    RoundSnapshot,
    cautions,
    read_round,
    read_study,
    require_keys,
)
from fdtr.exchange.folder.round_status import WHAT, Step, StepsTaken, names
from fdtr.exchange.folder_layout import (
    HUB_PARTS,
    MOST_ROUNDS,
    STUDY,
    TOTAL,
    begun_path,
    last_round,
    sites_of,
)
from fdtr.exchange.site_state.joined_folders import hub_lock
from fdtr.exchange.wire import encode_total
from fdtr.hub import doubtful_messages, missing_columns, not_compared
from fdtr.masking import list_survivors
from fdtr.signing import HUB, Key, check_site_name, numbered_round, require_own
from fdtr.study import Study, read_study_bytes

_WHO = "the hub"
_MOST_NAMED = 6


def open_folder(folder: str | Path, study_file: str | Path, key: Key | None = None) -> StepsTaken:
    """Make a study's folder with its first round. A second call with the same study does no harm."""
    folder, study_file = Path(folder), Path(study_file)
    content = read_study_bytes(study_file)
    study = Study.parse(content, study_file)
    study.require_shared()
    _require_feasible(study, key)
    within = numbered_round(study.fingerprint, study.roster, 1)
    with locked(hub_lock(study), _WHO):
        if os.path.lexists(folder / STUDY):
            content = read_study_bytes(folder / STUDY, folder)  # its roster may have changed since
            posted = Study.parse(content, folder / STUDY)
            if posted.fingerprint != study.fingerprint:
                raise OtherStudy(f"{folder} holds another study already. Nothing was written. Name another folder.")
            if posted.roster != study.roster:
                raise OtherRound(
                    f"{folder} holds this study with another roster. Nothing was written. Change the roster there with "
                    "`fdtr roster`, then begin a new round with `fdtr hub new-round`."
                )
        post(folder / STUDY, content)
        is_new = post(begun_path(folder, 1), seal_begun(within, key))
    done = (
        f"Opened {folder} with round 1. If it is shared, give every site access to it; over the network keep it to "
        f"yourself (chmod 700 {shlex.quote(str(folder))})."
    )
    sites = names(sites_of(study.roster)) or "the sites"
    waits = f"Messages of {sites}: `fdtr site join`, then `fdtr site next`; over the network, `fdtr hub serve`."
    return StepsTaken(1, (done,) if is_new else (), waits, (*_unsigned(study), *cautions(study)))


def new_round(folder: str | Path, key: Key | None = None) -> StepsTaken:
    """Begin another round under the study and roster in the folder; earlier postings do not count any more."""
    folder = Path(folder)
    study = read_study(folder)
    _require_feasible(study, key)
    with locked(hub_lock(study), _WHO):
        number = last_round(folder) + 1
        if number > MOST_ROUNDS:
            raise OtherRound(
                f"{folder} has had {MOST_ROUNDS} rounds, and there are no more numbers. Nothing was written. Open "
                "another folder with `fdtr hub open`."
            )
        empty = _untouched(folder, study)
        if empty:
            clean_up(begun_path(folder, empty))  # the first call may have died
            return StepsTaken(empty, (), f"All sites: round {empty} is open, and nobody posted anything in it yet.")
        within = numbered_round(study.fingerprint, study.roster, number)
        post(begun_path(folder, number), seal_begun(within, key))
    done = f"Began round {number}. Sites give round {number - 1} up, with their masks, when they next look."
    waits = (
        "All sites: `fdtr site next`; where the roster changed, `fdtr site join` first. Over the network: `fdtr hub "
        "start-round`."
    )
    return StepsTaken(number, (done,), waits)


def take_hub_steps(
    folder: str | Path, key: Key | None = None, close: bool = False, without: Collection[str] = ()
) -> StepsTaken:
    """Do all that the hub can do now. `close` goes on with the sites that posted; those in `without` may be missing."""
    folder = Path(folder)
    study = read_study(folder)
    require_own(key, HUB, study.roster)
    unknown = sorted(set(without) - set(sites_of(study.roster))) if study.roster else []
    if unknown:
        raise WrongSite(f"The roster has no site {unknown[0]!r}; it has {names(sites_of(study.roster))}.")
    with locked(hub_lock(study), _WHO):
        done: list[str] = []
        notes: list[str] = []
        snapshot = read_round(folder, study)
        for part in HUB_PARTS:
            clean_up(snapshot.path(part, HUB))
        step = _advance(snapshot, key, close, without)
        while step.done:
            done.append(step.done)
            notes += step.notes
            snapshot = read_round(folder, study)
            step = _advance(snapshot, key, close, without)
        notes += [note for note in step.notes if note not in notes]
        return StepsTaken(snapshot.number, tuple(done), step.waits, (*snapshot.faults, *notes))


def _advance(snapshot: RoundSnapshot, key: Key | None, close: bool, without: Collection[str]) -> Step:
    if snapshot.total is not None:
        snapshot.checked_total()
        return Step()
    return (_advance_masked if snapshot.is_masked else _advance_open)(snapshot, key, close, without)


def _advance_open(snapshot: RoundSnapshot, key: Key | None, close: bool, without: Collection[str]) -> Step:
    missing = [site for site in snapshot.lacking(snapshot.sums) if site not in without]
    if (missing or not snapshot.study.roster) and not close:
        so_far = f" Here: {names(list(snapshot.sums))}." if snapshot.sums else ""
        if not snapshot.study.roster:
            return Step(waits=f"Messages.{so_far} The study has no roster: say with --close when all are here.")
        return Step(waits=f"Messages of {names(missing)}.{so_far} Go on without them with --close.")
    if not snapshot.sums:
        return Step(waits="Messages: none is there yet.")
    total = snapshot.add_up(tuple(snapshot.sums))
    post(snapshot.path(TOTAL, HUB), encode_total(total, snapshot.within, key))
    unnamed = not_compared(len(snapshot.sums))
    doubts = [] if unnamed else [doubt.sentence for doubt in doubtful_messages(snapshot.sums.values())]
    notes = tuple(note for note in (missing_columns(total), unnamed, *doubts) if note)
    return Step(f"Added the messages of {names(total.sites)} and posted the total.", notes=notes)


def _advance_masked(snapshot: RoundSnapshot, key: Key | None, close: bool, without: Collection[str]) -> Step:
    fewest = snapshot.study.fewest_in_sum
    if len(snapshot.sites) < fewest:
        raise TooFewSurvivors(
            f"{names(snapshot.receivers)} only receive, and {len(snapshot.sites)} sites are left to send; a secure sum "
            f"here needs {fewest}. Nothing was posted. Wait until more sites are on the roster, then begin a new round."
        )
    silent = snapshot.lacking(snapshot.keys)
    if silent:
        return Step(
            waits=f"Keys of {names(silent)}. Nobody can mask before all are there. If one does not come, take it out "
            f"with `fdtr roster remove {snapshot.folder / STUDY} SITE` and begin a new round with `fdtr hub new-round`."
        )
    for phase in snapshot.phases:
        if phase.survivors is None:
            return _list_survivors(snapshot, phase, key, close, without)
        waits = _await_openings(snapshot, phase)
        if waits:
            return Step(waits=waits)
    total = snapshot.add_up(tuple(snapshot.summing.masked))
    post(snapshot.path(TOTAL, HUB), encode_total(total, snapshot.within, key))
    return Step(f"Took the masks off the sum of {names(total.sites)} and posted the total.")


def _await_openings(snapshot: RoundSnapshot, phase: MaskedPhase) -> str:
    """What a listed phase waits for; "" where every survivor opened its masks."""
    if phase.survivors is None:
        return ""
    if phase.dissenters:
        raise ProtocolViolation(
            f"{names(phase.dissenters)} signed another list of survivors than the one that lies here, so no site "
            "opens its masks. Somebody changed the list. Begin a new round with `fdtr hub new-round`."
        )
    lost = "If one is lost, begin a new round with `fdtr hub new-round`."
    expected = ((phase.confirmed, "Signatures under the list of survivors, of"), (phase.opened, "Openings of"))
    for parts, what in expected:
        missing = snapshot.lacking(parts, phase.survivors.sites)
        if missing:
            return f"{what} {names(missing)}. {lost}"
    return ""


def _list_survivors(
    snapshot: RoundSnapshot, phase: MaskedPhase, key: Key | None, close: bool, without: Collection[str]
) -> Step:
    what, counted = WHAT[phase.names], phase is snapshot.summing and snapshot.counting is not None
    notes = _taken_out(snapshot) if counted else ()
    missing = [site for site in snapshot.lacking(phase.masked, snapshot.expected) if counted or site not in without]
    if missing and counted:
        return Step(
            waits=f"Masked sums of {names(missing)}, whose counts are in the totals on which the rules were judged. If "
            "one is lost, begin a new round with `fdtr hub new-round`.",
            notes=notes,
        )
    if missing and not close:
        return Step(waits=f"Masked {what} of {names(missing)}. Go on without them with --close.")
    among = [message for site, message in phase.masked.items() if site in snapshot.expected]
    listed = list_survivors(phase.round, among, phase.verify)
    part = phase.names.survivors
    post(snapshot.path(part, HUB), seal_part(part, HUB, listed, snapshot.within, key))
    dropped = listed.dropped(phase.round)
    lacking = f", without {names(dropped)}" if dropped else ""
    return Step(f"Posted the list of survivors for {what}: {names(listed.sites)}{lacking}.", notes=notes)


def _taken_out(snapshot: RoundSnapshot) -> tuple[str, ...]:
    """A sentence on what all sites take out of their sums, once their counts are open; refuses if nothing is left."""
    common = snapshot.common
    out = taken_out(snapshot.study.feature_map, common) if common else []
    if not out:
        return ()
    listed = ", ".join(out[:_MOST_NAMED]) + (f" and {len(out) - _MOST_NAMED} more" if len(out) > _MOST_NAMED else "")
    return (f"The totals of counts are too small for a rule: all sites take out {listed}.",)


def _require_feasible(study: Study, key: Key | None) -> None:
    """Refuse a study whose rounds could not be carried out."""
    require_keys(study)
    require_own(key, HUB, study.roster)
    for site in sites_of(study.roster):
        check_site_name(site)
    if study.disclosure.secure_sum:
        masked_round(study, numbered_round(study.fingerprint, study.roster, 1))


def _untouched(folder: Path, study: Study) -> int:
    """The newest round, if it is of this roster and nobody posted in it, else 0: two calls begin one round."""
    try:
        snapshot = read_round(folder, study)
    except NoStudyFolder:
        return 0
    posted = (snapshot.sums, snapshot.keys, snapshot.receivers, snapshot.total)
    return 0 if any(posted) else snapshot.number


def _unsigned(study: Study) -> tuple[str, ...]:
    if not study.roster:
        return ("unsigned: the study has no [roster], so nobody can tell who made a file. See `fdtr keys new`.",)
    if HUB not in study.roster:
        return ("the roster has no key of the hub: whoever writes into the folder can begin and close rounds for it.",)
    return ()
