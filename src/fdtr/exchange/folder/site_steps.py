"""A site's steps in a round: everything that it can do now, in order, and then what it waits for.

A masked round goes from one state to the next. What a state posts is saved before the state is.

    nothing ─ announce ─▶ keys ─ all keys ─▶ masked ─ hub's list ─▶ confirmed ─ all confirmed ─▶ opened ─ total ─▶ done

A crash before a state is saved repeats its step; one after it posts the saved bytes again.
"""

from pathlib import Path

from fdtr.container import is_container
from fdtr.errors import BadSignature, ChangedSummary, OtherRound, OutputExists, ProtocolViolation
from fdtr.exchange.atomic_files import clean_up, clean_up_folder
from fdtr.exchange.folder.round_files import seal_masked, seal_part
from fdtr.exchange.folder.round_snapshot import RoundSnapshot, read_round, read_study
from fdtr.exchange.folder.round_status import Step, StepsTaken, names
from fdtr.exchange.folder.site_session import SiteSession
from fdtr.exchange.folder_layout import CONFIRMED, KEYS, MASKED, OPENED, SUMS, require_apart
from fdtr.exchange.release import Confirm, Proposal, require_confirm
from fdtr.exchange.site_state import use_state_folder
from fdtr.exchange.site_state.joined_folders import JoinedFolder
from fdtr.exchange.site_state.release_guard import (
    history_locked,
    read_history,
    require_never_summed,
    require_never_told,
    save_history,
)
from fdtr.exchange.site_state.sent_copies import find_kept, keep_rounded
from fdtr.masking import History, Sign, SiteRound, accept_survivors, allow_opening, as_sent, mask, start
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
        advance = _advance_masked if snapshot.is_masked else _advance_open
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
        return _mask(session, snapshot, masks)
    if not masks.opened:
        _require_message(session)
        session.release()
    if masks.survivors is None:
        return _confirm(session, snapshot, masks)
    if not masks.opened:
        return _open(session, snapshot, masks)
    return _finish(session, snapshot, masks)


def _announce(session: SiteSession, snapshot: RoundSnapshot) -> Step:
    _require_open(session, snapshot)
    snapshot.scale.encode(session.message.summary.sums)  # a site that may not release should not let others wait
    require_never_told(session.message.summary.content)
    masks = start(snapshot.masked_round, session.site, read_history())
    announcement = masks.announcement(_sign(session))
    session.state.save_outgoing(KEYS, seal_part(KEYS, session.site, announcement, session.within, session.key))
    session.state.save_masks(masks)
    _remember_begun(session)
    session.post(snapshot, KEYS)
    return Step("Posted this site's key for the round.")


def _mask(session: SiteSession, snapshot: RoundSnapshot, masks: SiteRound) -> Step:
    _require_open(session, snapshot)
    if session.post(snapshot, KEYS):
        return Step("Posted this site's key for the round.")
    missing = snapshot.lacking(snapshot.keys)
    if missing:
        return Step(waits=f"Keys of {names(missing)}.")
    session.release()
    own = session.saved()
    vector = snapshot.scale.encode(own.sums)
    masked = mask(masks, snapshot.keys.values(), vector, snapshot.verify)
    clean_up(keep_rounded(as_sent(own, snapshot.scale, masked.masked_digest)), ending="")
    sealed = seal_masked(masked.masked(vector, _sign(session)), session.within, session.key)
    session.state.save_outgoing(MASKED, sealed)
    session.state.save_masks(masked)
    session.post(snapshot, MASKED)
    return Step("Posted this site's message, masked: nobody can read it but as part of the sum.")


def _confirm(session: SiteSession, snapshot: RoundSnapshot, masks: SiteRound) -> Step:
    if snapshot.survivors is None:
        if session.post(snapshot, MASKED):
            return Step("Posted this site's masked message.")
        missing = snapshot.lacking(snapshot.masked)
        others = f"Masked messages of {names(missing)}, then the" if missing else "The"
        return Step(waits=f"{others} hub's list of survivors: `fdtr hub next`.")
    confirmed = accept_survivors(masks, snapshot.survivors, _alike(session, read_history()), session.study.roster)
    confirmation = confirmed.confirmation(_sign(session))
    sealed = seal_part(CONFIRMED, session.site, confirmation, session.within, session.key)
    session.state.save_outgoing(CONFIRMED, sealed)
    session.state.save_masks(confirmed)
    session.post(snapshot, CONFIRMED)
    return Step(f"Signed the list of survivors: {names(snapshot.survivors.sites)}.")


def _open(session: SiteSession, snapshot: RoundSnapshot, masks: SiteRound) -> Step:
    survivors = masks.survivors
    if survivors is None:
        raise ProtocolViolation("There is no list of survivors.")
    if snapshot.survivors is not None and snapshot.survivors != survivors:
        raise ProtocolViolation(
            f"The hub's list of survivors is not the one that site {session.site!r} signed. One that signs two lets "
            "the hub unmask a site. No mask was opened. Ask the hub, and wait for a new round."
        )
    if session.post(snapshot, CONFIRMED):
        return Step("Posted this site's signature under the list of survivors.")
    missing = snapshot.lacking(snapshot.confirmed, survivors.sites)
    if missing and not snapshot.dissenters:
        return Step(waits=f"Signatures under the list of survivors, of {names(missing)}.")
    with history_locked() as history:
        require_never_told(session.sent.content)  # they may have left since
        roster = session.study.roster
        opened = allow_opening(masks, snapshot.confirmed.values(), _alike(session, history), snapshot.verify, roster)
        keys = {site: roster[site] for site in survivors.sites}
        study, content = session.study.fingerprint, session.sent.content
        save_history(history.opened(masks.round.context, study, content, keys))
    opening = seal_part(OPENED, session.site, opened.opening(_sign(session)), session.within, session.key)
    session.state.save_outgoing(OPENED, opening)
    session.state.save_masks(opened)
    session.post(snapshot, OPENED)
    return Step("All survivors signed the same list. Opened this site's part of the masks on the sum.")


def _finish(session: SiteSession, snapshot: RoundSnapshot, masks: SiteRound) -> Step:
    if session.post(snapshot, OPENED):
        return Step("Posted this site's part of the masks on the sum.")
    if snapshot.total is None or masks.survivors is None:
        missing = snapshot.lacking(snapshot.opened, snapshot.survivors.sites) if snapshot.survivors else []
        others = f"Openings of {names(missing)}, then the" if missing else "The"
        return Step(waits=f"{others} hub's total: `fdtr hub next`.")
    own = find_kept(snapshot.total, session.site, session.study)
    if own is None:
        raise ChangedSummary(
            f"What the secure sum has of site {session.site!r} is no longer among the copies in the state folder, "
            "`sent`. Nothing was fitted. Restore it from a copy."
        )
    done = session.finish(snapshot, own)
    session.state.destroy()
    return Step(done)


def _require_open(session: SiteSession, snapshot: RoundSnapshot) -> None:
    if snapshot.survivors is not None or snapshot.total is not None:
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
