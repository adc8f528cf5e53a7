"""A site in a masked round, from one state to the next. What each state posts is at home before the state is.

    nothing ─ announce ─▶ keys ─ all keys ─▶ masked ─ hub's list ─▶ confirmed ─ all confirmed ─▶ opened ─ total ─▶ done

A crash before a state is saved repeats its step; one after it posts the saved bytes again.
"""

from fdtr.errors import ChangedSummary, OtherSurvivors, OutOfTurn, RoundClosed, Unsigned
from fdtr.exchange.folder.board import Board
from fdtr.exchange.folder.durable import sweep
from fdtr.exchange.folder.layout import SUMS
from fdtr.exchange.folder.memory import history_locked, read_history, save_history
from fdtr.exchange.folder.one_way import require_never_told
from fdtr.exchange.folder.parts import CONFIRMED, KEYS, MASKED, OPENED, seal_masked, seal_part
from fdtr.exchange.folder.player import Player
from fdtr.exchange.folder.turns import Step, names
from fdtr.exchange.kept import find_kept, keep_rounded
from fdtr.masking import History, Sign, SiteRound, as_sent, confirm, mask, release, start


def advance(player: Player, board: Board) -> Step:
    """One step, or what it takes for the next."""
    state = player.mine.state
    if state is None:
        return _announce(player, board)
    _remember_begun(player)
    if player.mine.policy is not None and not player.out:
        player.mine.destroy()
        return Step()
    if not state.self_mask and not state.opened:
        raise OutOfTurn(
            f"Site {player.site!r} gave round {board.number} up, and its masks are destroyed. Wait for a new round: "
            "`fdtr hub new-round`."
        )
    if not state.masked_digest:
        return _mask(player, board, state)
    if not state.opened:
        _require_message(player)
        player.release()
    if state.survivors is None:
        return _confirm(player, board, state)
    if not state.opened:
        return _open(player, board, state)
    return _finish(player, board, state)


def _announce(player: Player, board: Board) -> Step:
    _require_open(player, board)
    board.scale.encode(player.message.summary.sums)  # who may not release had better not make others wait
    require_never_told(player.message.summary.content)
    state = start(board.agreed, player.site, read_history())
    announcement = state.announcement(_sign(player))
    player.mine.save_outgoing(KEYS, seal_part(KEYS, player.site, announcement, player.within, player.key))
    player.mine.save_state(state)
    _remember_begun(player)
    player.post(board, KEYS)
    return Step("Posted this site's key for the round.")


def _mask(player: Player, board: Board, state: SiteRound) -> Step:
    _require_open(player, board)
    if player.post(board, KEYS):
        return Step("Posted this site's key for the round.")
    missing = board.lacking(board.keys)
    if missing:
        return Step(waits=f"Keys of {names(missing)}.")
    player.release()
    own = player.saved()
    vector = board.scale.encode(own.sums)
    masked = mask(state, board.keys.values(), vector, board.verify)
    sweep(keep_rounded(as_sent(own, board.scale, masked.masked_digest)), ending="")
    sealed = seal_masked(masked.masked(vector, _sign(player)), player.within, player.key)
    player.mine.save_outgoing(MASKED, sealed)
    player.mine.save_state(masked)
    player.post(board, MASKED)
    return Step("Posted this site's message, masked: nobody can read it but as part of the sum.")


def _confirm(player: Player, board: Board, state: SiteRound) -> Step:
    if board.survivors is None:
        if player.post(board, MASKED):
            return Step("Posted this site's masked message.")
        missing = board.lacking(board.masked)
        others = f"Masked messages of {names(missing)}, then the" if missing else "The"
        return Step(waits=f"{others} hub's list of survivors: `fdtr hub next`.")
    confirmed = confirm(state, board.survivors, _alike(player, read_history()), player.study.roster)
    confirmation = confirmed.confirmation(_sign(player))
    player.mine.save_outgoing(CONFIRMED, seal_part(CONFIRMED, player.site, confirmation, player.within, player.key))
    player.mine.save_state(confirmed)
    player.post(board, CONFIRMED)
    return Step(f"Signed the list of survivors: {names(board.survivors.sites)}.")


def _open(player: Player, board: Board, state: SiteRound) -> Step:
    survivors = state.survivors
    if survivors is None:
        raise OutOfTurn("There is no list of survivors.")
    if board.survivors is not None and board.survivors != survivors:
        raise OtherSurvivors(
            f"The hub's list of survivors is not the one that site {player.site!r} signed. One that signs two lets the "
            "hub unmask a site. No mask was opened. Ask the hub, and wait for a new round."
        )
    if player.post(board, CONFIRMED):
        return Step("Posted this site's signature under the list of survivors.")
    missing = [site for site in survivors.sites if site not in board.confirmed]
    if missing and not board.dissenters:
        return Step(waits=f"Signatures under the list of survivors, of {names(missing)}.")
    with history_locked() as history:
        require_never_told(player.sent.content)  # they may have left since
        roster = player.study.roster
        opened = release(state, board.confirmed.values(), _alike(player, history), board.verify, roster)
        keys = {site: roster[site] for site in survivors.sites}
        study, content = player.study.fingerprint, player.sent.content
        save_history(history.opened(state.round.context, study, content, keys))
    opening = seal_part(OPENED, player.site, opened.opening(_sign(player)), player.within, player.key)
    player.mine.save_outgoing(OPENED, opening)
    player.mine.save_state(opened)
    player.post(board, OPENED)
    return Step("All survivors signed the same list. Opened this site's part of the masks on the sum.")


def _finish(player: Player, board: Board, state: SiteRound) -> Step:
    if player.post(board, OPENED):
        return Step("Posted this site's part of the masks on the sum.")
    if board.total is None or state.survivors is None:
        missing = [site for site in board.survivors.sites if site not in board.opened] if board.survivors else []
        others = f"Openings of {names(missing)}, then the" if missing else "The"
        return Step(waits=f"{others} hub's total: `fdtr hub next`.")
    own = find_kept(board.total, player.site, player.study)
    if own is None:
        raise ChangedSummary(
            f"What the secure sum has of site {player.site!r} is no longer among the copies in the state folder, "
            "`sent`. Nothing was fitted. Restore it from a copy."
        )
    done, player.out = player.finish(board, own), None
    player.mine.destroy()
    return Step(done)


def _require_open(player: Player, board: Board) -> None:
    if board.survivors is not None or board.total is not None:
        raise RoundClosed(
            f"Round {board.number} was closed without site {player.site!r}. Nothing was posted. Wait for a new round: "
            "`fdtr hub new-round`."
        )


def _require_message(player: Player) -> None:
    """Refuse to go on without the message that was masked: one made now would be recorded in its place."""
    if player.mine.outgoing(SUMS) is None:
        raise OutOfTurn(
            f"The message that site {player.site!r} masked in round {player.number} is no longer at home. Nothing was "
            "posted. Wait for a new round: `fdtr hub new-round`."
        )


def _remember_begun(player: Player) -> None:
    context = bytes.fromhex(player.within.context)
    if read_history().knows(context):
        return
    with history_locked() as history:
        save_history(history.begun(context))


def _alike(player: Player, history: History) -> History:
    """What of all earlier rounds could be subtracted from this one."""
    return history.alike(player.study.fingerprint, player.sent.content)


def _sign(player: Player) -> Sign:
    """Signs what the secure sum asks, with the site's key of the roster."""
    key = player.key
    if key is None:
        raise Unsigned(f"A secure sum needs the key of site {player.site!r}. Join the folder again with --key.")
    return lambda content: bytes.fromhex(key.sign(content))
