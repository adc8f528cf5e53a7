"""A site's steps in a round: everything that it can do now, in order, and then what it waits for.

A masked round goes from one state to the next. What a state posts is saved before the state is.

    nothing ─ announce ─▶ keys ─ all keys ─▶ masked ─ hub's list ─▶ confirmed ─ all confirmed ─▶ opened ─ total ─▶ done

If the rules are judged on totals of counts, counts go the same way first, from keys to opened, under other masks. All
sites then take the same out of their sums, and the sums of all sites that were counted are added, and of no others.

A crash before a state is saved repeats its step; one after it posts the saved bytes again.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from secrets import token_bytes

from fdtr.container import is_container
from fdtr.disclosure.common_repairs import CommonRepairs
from fdtr.errors import BadSignature, ChangedSummary, OtherRound, OutputExists, ProtocolViolation
from fdtr.exchange.atomic_files import clean_up, clean_up_folder
from fdtr.exchange.folder.masked_phase import MaskedPhase
from fdtr.exchange.folder.round_files import seal_masked, seal_part, seal_receives
from fdtr.exchange.folder.round_snapshot import RoundSnapshot, read_round, read_study
from fdtr.exchange.folder.round_status import WHAT, Step, StepsTaken, names
from fdtr.exchange.folder.site_session import SiteSession
from fdtr.exchange.folder_layout import (
    COUNTS,
    KEYS,
    MASKED,
    OPENED,
    RECEIVES,
    SUMS,
    require_apart,
)
from fdtr.exchange.release import Confirm, Proposal, require_confirm
from fdtr.exchange.site_state import use_state_folder
from fdtr.exchange.site_state.joined_folders import JoinedFolder
from fdtr.exchange.site_state.release_guard import (
    free_messages,
    history_locked,
    read_history,
    require_never_summed,
    require_never_told,
    save_history,
)
from fdtr.exchange.site_state.sent_copies import find_kept, keep_rounded
from fdtr.masking import (
    Announcements,
    History,
    Sign,
    SiteRound,
    SurvivorList,
    accept_survivors,
    allow_opening,
    as_sent,
    mask,
    start,
)
from fdtr.signing import Key


def take_site_steps(
    joined: JoinedFolder, *, confirm: Confirm[Proposal], key: Key | None = None, out: str | Path | None = None
) -> StepsTaken:
    """Do all that this site can do now. Whatever is posted was saved in the state folder before.

    `confirm` is asked before the site's message is posted, as by `release_message`. The finished policy is also
    written to `out`, which must not lie in the shared folder. The state folder is the one in which the site joined.
    """
    require_confirm(confirm)
    out = Path(out) if out is not None else None
    require_apart(joined.folder, ("The policy", out))
    if out is not None and out.is_file() and not is_container(out):
        raise OutputExists(f"{out} is a file that fdtr did not write. Nothing was written. Name another.")
    with use_state_folder(joined.state_folder), joined.locked():
        joined.require_same(read_study(joined.folder))
        snapshot = read_round(joined.folder, joined.study)
        within = snapshot.within
        session = SiteSession(joined, joined.round(within), within, snapshot.number, key, confirm, out)
        clean_up_folder(joined.place, ".*")
        session.clean_up(snapshot)
        done = []
        if joined.give_up_others(within):
            done.append("Gave an earlier round up: its masks are destroyed.")
        if joined.study.counts_first:
            free_messages(joined, session.state)
        advance = _advance_masked if snapshot.is_masked else _advance_open
        advance = _advance_receiving if joined.receive_only else advance
        step = advance(session, snapshot)
        while step.done:
            done.append(step.done)
            snapshot = session.snapshot()
            step = advance(session, snapshot)
        notes = (*snapshot.faults, *session.notes)
        return StepsTaken(snapshot.number, tuple(done), step.waits, notes, session.state.policy)


def _advance_open(session: SiteSession, snapshot: RoundSnapshot) -> Step:
    """One step of an open round: the site's message, then its policy from the total."""
    closed = snapshot.total is not None and session.site not in snapshot.total.sites
    if closed:
        raise OtherRound(
            f"Round {snapshot.number} was closed without site {session.site!r}. Nothing was done. Ask the hub for "
            "another round; strike a message that nobody had with `fdtr site withdraw`."
        )
    if session.state.policy is None:
        _release_open(session)
        session.saved()
        if session.post(snapshot, SUMS):
            return Step("Posted this site's message: sums over its patients, never a row.")
        if snapshot.total is None:
            return Step(waits="The hub adds the messages up when all are there: `fdtr hub next`.")
    if session.state.policy is None or session.out is not None:
        return Step(session.finish(snapshot, session.saved()))
    return Step()


def _release_open(session: SiteSession) -> None:
    """Have the message agreed to and recorded; refuses one whose numbers are in an opened secure sum."""
    if session.state.sent is not None and session.state.sent.posted:
        return
    is_saved = session.state.outgoing(SUMS) is not None
    require_never_summed((session.saved() if is_saved else session.message.summary).content)
    session.release()
    require_never_summed(session.sent.content, recorded=True)


def _advance_masked(session: SiteSession, snapshot: RoundSnapshot) -> Step:
    """One step of a masked round, or what it waits for."""
    masks = session.state.masks
    if masks is None:
        return _announce(session, snapshot)
    _remember_begun(session)
    if session.state.policy is not None and not session.out:
        session.state.destroy()
        return Step()
    if not masks.self_mask and not masks.opened:
        raise ProtocolViolation(
            f"Site {session.site!r} gave round {snapshot.number} up, and its masks are destroyed. Wait for a new "
            "round: `fdtr hub new-round`."
        )
    if not masks.masked_digest:
        step = Step() if snapshot.counting is None else _advance_counts(session, snapshot, snapshot.counting)
        return step if step.done or step.waits else _mask(session, snapshot, masks)
    if not masks.opened:
        _require_message(session)
        session.release(lambda: _common(session, snapshot))
    if masks.survivors is None:
        return _confirm_sums(session, snapshot, masks)
    if not masks.opened:
        return _open_sums(session, snapshot, masks)
    return _finish(session, snapshot, masks)


def _advance_counts(session: SiteSession, snapshot: RoundSnapshot, phase: MaskedPhase) -> Step:
    """One step of the counts that are opened before the sums; an empty one where all counts are open."""
    masks, save = session.state.count_masks, session.state.save_count_masks
    if masks is None or not masks.self_mask:
        raise ProtocolViolation(
            f"The masks on the counts of site {session.site!r} in round {snapshot.number} are no longer at home. "
            "Nothing was posted. Wait for a new round: `fdtr hub new-round`."
        )
    if not masks.masked_digest:
        return _mask_counts(session, snapshot, phase, masks)
    if masks.survivors is None:
        return _confirm(session, snapshot, phase, masks, History(), save)
    if not masks.opened:
        return _await_signatures(session, phase, masks) or _open(session, phase, masks, History(), save)
    if session.post(snapshot, phase.names.opened):
        return Step("Posted this site's part of the masks on the counts.")
    missing = snapshot.lacking(phase.opened, masks.survivors.sites)
    if missing:
        return Step(waits=f"Openings of the counts, of {names(missing)}.")
    return Step()


def _announce(session: SiteSession, snapshot: RoundSnapshot) -> Step:
    _require_open(session, snapshot)
    agreed = snapshot.summing.round
    if snapshot.counting is None:
        snapshot.scale.encode(session.message.summary.sums)  # a site that may not release should not let others wait
        require_never_told(session.message.summary.content)
    else:
        snapshot.scale.encode(session.own_message.summary.sums)
        require_never_told(session.own_message.summary.content)
    masks = start(agreed, session.site, read_history())
    announced = Announcements(masks.announcement(_sign(session)))
    if snapshot.counting is not None:
        counting = start(snapshot.counting.round, session.site, History())
        announced = replace(announced, counts=counting.announcement(_sign(session)))
        session.state.save_count_masks(counting)
    session.state.save_outgoing(KEYS, seal_part(KEYS, session.site, announced, session.within, session.key))
    session.state.save_masks(masks)
    _remember_begun(session)
    session.post(snapshot, KEYS)
    return Step("Posted this site's key for the round.")


def _await_keys(session: SiteSession, snapshot: RoundSnapshot) -> Step | None:
    _require_open(session, snapshot)
    if session.post(snapshot, KEYS):
        return Step("Posted this site's key for the round.")
    missing = snapshot.lacking(snapshot.keys)
    return Step(waits=f"Keys of {names(missing)}.") if missing else None


def _mask_counts(session: SiteSession, snapshot: RoundSnapshot, phase: MaskedPhase, masks: SiteRound) -> Step:
    waits = _await_keys(session, snapshot)
    if waits is not None:
        return waits
    session.agree_to_counts()
    vector = session.study.count_layout.encode(session.counts, token_bytes)
    masked = mask(replace(masks, round=phase.round), phase.keys.values(), vector, phase.verify)
    session.state.save_counted(session.counts.digest)
    sealed = seal_masked(COUNTS, masked.masked(vector, _sign(session)), session.within, session.key)
    session.state.save_outgoing(COUNTS, sealed)
    session.state.save_count_masks(masked)
    session.post(snapshot, COUNTS)
    return Step("Posted this site's counts of patients, masked: the rules are judged on the totals of all sites.")


def _mask(session: SiteSession, snapshot: RoundSnapshot, masks: SiteRound) -> Step:
    waits = _await_keys(session, snapshot)
    if waits is not None:
        return waits
    phase = snapshot.summing
    session.common = _common(session, snapshot)
    if session.state.outgoing(SUMS) is None:
        session.require_counted()
        require_never_told(session.message.summary.content)  # before anybody is asked
    session.release()
    own = session.saved()
    require_never_told(own.content)
    vector = snapshot.scale.encode(own.sums)
    masked = mask(replace(masks, round=phase.round), phase.keys.values(), vector, phase.verify)
    clean_up(keep_rounded(as_sent(own, snapshot.scale, masked.masked_digest)), ending="")
    sealed = seal_masked(MASKED, masked.masked(vector, _sign(session)), session.within, session.key)
    session.state.save_outgoing(MASKED, sealed)
    session.state.save_masks(masked)
    session.post(snapshot, MASKED)
    return Step("Posted this site's message, masked: nobody can read it but as part of the sum.")


def _confirm_sums(session: SiteSession, snapshot: RoundSnapshot, masks: SiteRound) -> Step:
    _require_counted(session, snapshot, snapshot.summing.survivors)
    history = _alike(session, read_history())
    return _confirm(session, snapshot, snapshot.summing, masks, history, session.state.save_masks)


def _confirm(
    session: SiteSession,
    snapshot: RoundSnapshot,
    phase: MaskedPhase,
    masks: SiteRound,
    history: History,
    save: Callable[[SiteRound], None],
) -> Step:
    """Sign the hub's list of the sites whose numbers are added, in one phase."""
    what = WHAT[phase.names]
    if phase.survivors is None:
        if session.post(snapshot, phase.names.masked):
            return Step(f"Posted this site's masked {what}.")
        missing = snapshot.lacking(phase.masked)
        others = f"Masked {what} of {names(missing)}, then the" if missing else "The"
        return Step(waits=f"{others} hub's list of survivors: `fdtr hub next`.")
    confirmed = accept_survivors(masks, phase.survivors, history, session.study.roster)
    confirmation = confirmed.confirmation(_sign(session))
    part = phase.names.confirmed
    session.state.save_outgoing(part, seal_part(part, session.site, confirmation, session.within, session.key))
    save(confirmed)
    session.post(snapshot, part)
    return Step(f"Signed the list of survivors for {what}: {names(phase.survivors.sites)}.")


def _await_signatures(session: SiteSession, phase: MaskedPhase, masks: SiteRound) -> Step | None:
    """Post the own signature, and wait for the others'; None where they are there."""
    survivors = masks.survivors
    if survivors is None:
        raise ProtocolViolation("There is no list of survivors.")
    if phase.survivors is not None and phase.survivors != survivors:
        raise ProtocolViolation(
            f"The hub's list of survivors is not the one that site {session.site!r} signed. One that signs two lets "
            "the hub unmask a site. No mask was opened. Ask the hub, and wait for a new round."
        )
    if session.post(session.snapshot(), phase.names.confirmed):
        return Step("Posted this site's signature under the list of survivors.")
    missing = [site for site in survivors.sites if site not in phase.confirmed]
    if missing and not phase.dissenters:
        return Step(waits=f"Signatures under the list of survivors, of {names(missing)}.")
    return None


def _open_sums(session: SiteSession, snapshot: RoundSnapshot, masks: SiteRound) -> Step:
    phase = snapshot.summing
    _require_counted(session, snapshot, masks.survivors)
    waits = _await_signatures(session, phase, masks)
    if waits is not None or masks.survivors is None:
        return waits or Step()
    with history_locked() as history:
        require_never_told(session.sent.content)  # they may have left since
        roster = session.study.roster
        keys = {site: roster[site] for site in masks.survivors.sites}
        study, content = session.study.fingerprint, session.sent.content

        def remember(_: SiteRound) -> None:
            save_history(history.opened(masks.round.context, study, content, keys))

        return _open(session, phase, masks, _alike(session, history), session.state.save_masks, remember)


def _open(
    session: SiteSession,
    phase: MaskedPhase,
    masks: SiteRound,
    history: History,
    save: Callable[[SiteRound], None],
    remember: Callable[[SiteRound], None] = lambda _: None,
) -> Step:
    """Open the masks of one phase, once every survivor signed the same list; `remember` comes before all else."""
    opened = allow_opening(masks, phase.confirmed.values(), history, phase.verify, session.study.roster)
    remember(opened)
    part = phase.names.opened
    opening = seal_part(part, session.site, opened.opening(_sign(session)), session.within, session.key)
    session.state.save_outgoing(part, opening)
    save(opened)
    session.post(session.snapshot(), part)
    return Step(f"All survivors signed the same list. Opened this site's part of the masks on the {WHAT[phase.names]}.")


def _finish(session: SiteSession, snapshot: RoundSnapshot, masks: SiteRound) -> Step:
    phase = snapshot.summing
    if session.post(snapshot, OPENED):
        return Step("Posted this site's part of the masks on the sum.")
    if snapshot.total is None or masks.survivors is None:
        missing = snapshot.lacking(phase.opened, phase.survivors.sites) if phase.survivors else []
        others = f"Openings of {names(missing)}, then the" if missing else "The"
        return Step(waits=f"{others} hub's total: `fdtr hub next`.")
    own = find_kept(snapshot.total, session.site, session.study)
    if own is None:
        raise ChangedSummary(
            f"What the secure sum has of site {session.site!r} is no longer among the copies in the state folder, "
            "`sent`. Nothing was fitted. Restore it from a copy."
        )
    _require_counted(session, snapshot, masks.survivors)
    done = session.finish(snapshot, own)
    session.state.destroy()
    return Step(done)


def _common(session: SiteSession, snapshot: RoundSnapshot) -> CommonRepairs | None:
    """What all sites take out, by the list of counted sites that this site signed; None in a study without counts."""
    if snapshot.counting is None:
        return None
    saved = session.state.common
    if saved is None:
        saved = snapshot.common_of(_signed_counts(session))
        session.state.save_common(saved)
    return saved


def _require_counted(session: SiteSession, snapshot: RoundSnapshot, survivors: SurvivorList | None) -> None:
    if snapshot.counting is not None and survivors is not None:
        snapshot.require_counted(survivors, _signed_counts(session))


def _signed_counts(session: SiteSession) -> SurvivorList:
    """The list of counted sites that this site signed. The hub's file may be missing, or another one by now."""
    masks = session.state.count_masks
    if masks is None or masks.survivors is None:
        raise ProtocolViolation(
            f"Site {session.site!r} no longer knows whose counts it opened in round {session.number}. Nothing was "
            "posted. Wait for a new round: `fdtr hub new-round`."
        )
    return masks.survivors


def _advance_receiving(session: SiteSession, snapshot: RoundSnapshot) -> Step:
    """One step of a site that sends nothing: say so, then learn from the others' total."""
    if session.state.policy is not None and session.out is None:
        return Step()
    if session.site in snapshot.keys or session.site in snapshot.sums:
        raise OtherRound(
            f"Round {snapshot.number} counts site {session.site!r} as a sender: it posted its key or its message "
            "before it joined to receive only. Nothing was posted. Ask the hub for a new round: `fdtr hub new-round`."
        )
    if snapshot.study.roster and session.state.outgoing(RECEIVES) is None:
        session.state.save_outgoing(RECEIVES, seal_receives(session.site, session.within, session.key))
    if session.post(snapshot, RECEIVES):
        return Step("Told everybody that this site sends nothing, and only receives the total.")
    if snapshot.total is None:
        return Step(waits="The hub adds up what the others send: `fdtr hub next`.")
    return Step(session.finish(snapshot, None))


def _require_open(session: SiteSession, snapshot: RoundSnapshot) -> None:
    listed = [phase.survivors for phase in snapshot.phases if phase.survivors is not None]
    without = any(session.site not in survivors.sites for survivors in listed)
    if without or snapshot.summing.survivors is not None or snapshot.total is not None:
        raise OtherRound(
            f"Round {snapshot.number} was closed without site {session.site!r}. Nothing was posted. Wait for a new "
            "round: `fdtr hub new-round`."
        )


def _require_message(session: SiteSession) -> None:
    """Refuse to go on without the message that was masked: one made now would be recorded in its place."""
    if session.state.outgoing(SUMS) is None:
        raise ProtocolViolation(
            f"The message that site {session.site!r} masked in round {session.number} is no longer at home. Nothing "
            "was posted. Wait for a new round: `fdtr hub new-round`."
        )


def _remember_begun(session: SiteSession) -> None:
    context = bytes.fromhex(session.within.context)
    if read_history().knows(context):
        return
    with history_locked() as history:
        save_history(history.begun(context))


def _alike(session: SiteSession, history: History) -> History:
    """The earlier secure sums that could be subtracted from this one."""
    return history.alike(session.study.fingerprint, session.sent.content)


def _sign(session: SiteSession) -> Sign:
    """Signs the statements of the secure sum with the site's key of the roster."""
    key = session.key
    if key is None:
        raise BadSignature(f"A secure sum needs the key of site {session.site!r}. Join the folder again with --key.")
    return lambda content: bytes.fromhex(key.sign(content))
