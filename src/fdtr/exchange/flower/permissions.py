"""Files and folders of a service that nobody else on the machine may read or write."""

import os
import pwd
import shlex
import stat
from pathlib import Path

from fdtr.errors import Exposed, InvalidSettings, OtherUser


def require_private(what: str, path: Path) -> None:
    """Refuse a file that others could read."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise InvalidSettings(f"{what} {path} could not be read: {error.strerror}.") from None
    if not stat.S_ISREG(mode):
        raise InvalidSettings(f"{what} {path} is no file.")
    if mode & 0o077:
        raise Exposed(f"{what} {path} can be read by others. Close it with: chmod 600 {shlex.quote(str(path))}")


def require_owner(state: Path) -> None:
    """Refuse to work in the folder of another user's service: it could not use what we leave there, nor replace it."""
    for folder in (state, *state.parents):
        try:
            owner = folder.stat().st_uid
        except PermissionError:
            continue  # whoever keeps us out is the owner that we look for
        except OSError:
            return  # not there yet
        if owner != os.geteuid():
            raise OtherUser(
                f"{folder} belongs to {_user(owner)}, who runs the service. Nothing was done. Run the "
                f"same as that user: sudo -u {_user(owner)} fdtr …"
            )
        return


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"'#{number}'"  # as sudo takes it


def private_folder(what: str, path: Path) -> Path:
    """A folder of the service's own, made where it is not there; refused where others could look into it."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise InvalidSettings(f"{what} {path} could not be made: {error.strerror}.") from None
    require_private_folder(what, path)
    return path


def require_private_folder(what: str, path: Path) -> None:
    """Refuse a folder that others could look into."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise InvalidSettings(f"{what} {path} could not be read: {error.strerror}.") from None
    if mode & 0o077:
        raise Exposed(f"{what} {path} can be read by others. Close it with: chmod 700 {shlex.quote(str(path))}")
