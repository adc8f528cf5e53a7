from .folder.hub_steps import new_round, open_folder, take_hub_steps
from .folder.round_snapshot import read_round
from .folder.round_status import RoundStatus, StepsTaken, status_of
from .folder.site_session import join
from .folder.site_steps import take_site_steps
from .release import (
    AGREED_BEFOREHAND,
    Proposal,
    ReleasedMessage,
    release_message,
    release_table,
    release_values,
    withdraw,
)
from .site_state import use_state_folder
from .site_state.joined_folders import JoinedFolder, find_joined
from .streamed_messages import StreamedMessages
from .wire import read_message, read_total, read_values, write_total

__all__ = [
    "AGREED_BEFOREHAND",
    "JoinedFolder",
    "Proposal",
    "ReleasedMessage",
    "RoundStatus",
    "StepsTaken",
    "StreamedMessages",
    "find_joined",
    "join",
    "new_round",
    "open_folder",
    "read_message",
    "read_round",
    "read_total",
    "read_values",
    "release_message",
    "release_table",
    "release_values",
    "status_of",
    "take_hub_steps",
    "take_site_steps",
    "use_state_folder",
    "withdraw",
    "write_total",
]
