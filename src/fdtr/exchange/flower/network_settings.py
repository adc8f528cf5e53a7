"""The settings files hub.toml and site.toml, and the permissions of the files that a service uses.

Paths in a settings file are relative to the folder of that file.
"""

import errno
import os
import pwd
import re
import shlex
import stat
import tomllib
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, ValidationError, ValidationInfo, field_validator, model_validator

from fdtr.errors import Exposed, InvalidSettings, ServiceError
from fdtr.exchange.flower.certificates import is_host
from fdtr.exchange.flower.node_keys import public_pem
from fdtr.signing import check_site_name
from fdtr.study.sections import Section, Text, Whole
from fdtr.study.validation_messages import readable
from fdtr.trajectories.table_in_database import DatabaseTable, file_of, has_password

LEAST_DEADLINE = 5
MOST_DEADLINE = 86400
_FOLDER = "folder"
_PORT = re.compile("[0-9]{1,5}")


def host_of(endpoint: str) -> str | None:
    """The host in a text such as "hub.example.org:8443" or "[::1]:8443"; None for anything but a host and a port.

    >>> host_of("[::1]:8443"), host_of("::1:8443"), host_of("user@hub:8443")
    ('::1', None, None)
    """
    host, _, port = endpoint.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if bracketed else host
    valid_port = _PORT.fullmatch(port) is not None and 0 < int(port) < 65536
    return bare if valid_port and is_host(bare) and (":" in bare) == bracketed else None


def _beside_the_file(path: Path, info: ValidationInfo) -> Path:
    folder: Path = (info.context or {}).get(_FOLDER, Path())
    place = folder / path
    try:
        place.lstat()
    except ValueError:
        raise ValueError("no path holds a zero byte") from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise ValueError("no path is as long as this one") from None
    return place


def _without_password(address: str, info: ValidationInfo) -> str:
    if has_password(address):
        raise ValueError("leave the password out; put it into ~/.pgpass, or into PGPASSWORD of the service")
    file = file_of(DatabaseTable(address, ""))
    return address if file is None else f"duckdb:{_beside_the_file(file, info)}"


def _host_and_port(text: str) -> str:
    if host_of(text) is None:
        raise ValueError('give a host and a port, such as "hub.example.org:8443" or "[2001:db8::1]:8443"')
    return text


def _listening(text: str) -> str:
    _host_and_port(text.replace("*", "everywhere") if text.startswith("*:") else text)
    return text


Place = Annotated[Path, AfterValidator(_beside_the_file)]
DatabaseAddress = Annotated[Text, AfterValidator(_without_password)]
Endpoint = Annotated[Text, AfterValidator(_host_and_port)]
Listening = Annotated[Text, AfterValidator(_listening)]
Port = Annotated[Whole, Field(ge=1, le=65535)]


class _Settings(Section):
    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a settings file; the error names every fault."""
        try:
            fields: Any = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
            raise InvalidSettings(f"The settings {path} could not be read: {reason}.") from None
        except tomllib.TOMLDecodeError as error:
            raise InvalidSettings(f"{path} is not valid TOML: {error}.") from None
        try:
            return cls.model_validate(fields, context={_FOLDER: path.absolute().parent})
        except ValidationError as error:
            raise InvalidSettings("\n".join([f"{path}:", *readable(error, cls, fields)])) from None


class Tls(Section):
    """The certificate that sites see."""

    certificate: Annotated[Place, Field(description="With the chain above it, in PEM.")]
    key: Annotated[Place, Field(description="Its private key, readable by its owner alone.")]


class HubSettings(_Settings):
    """hub.toml."""

    folder: Annotated[Place, Field(description="The hub's copy of the study's folder, as `fdtr hub open` makes it.")]
    key: Annotated[Place, Field(description="The hub's private key, whose public half is on the roster.")]
    state: Annotated[Place, Field(description="Where the service keeps its own files.")]
    listen: Annotated[Listening, Field(description="Where nginx listens.")] = "0.0.0.0:8443"
    address: Annotated[Endpoint, Field(description="What sites connect to.")]
    tls: Tls
    nodes: Annotated[dict[Text, Text], Field(description="Each site's line from `fdtr keys node`.", min_length=1)]
    deadline: Annotated[
        Whole, Field(ge=LEAST_DEADLINE, le=MOST_DEADLINE, description="Seconds that sites have for one message.")
    ] = 600
    min_sites: Annotated[Whole, Field(ge=3, description="Fewer are refused.")] = 3

    @field_validator("nodes")
    @classmethod
    def _check_nodes(cls, nodes: dict[str, str]) -> dict[str, str]:
        keys = {}
        for site, line in nodes.items():
            check_site_name(site)
            try:
                keys[site] = public_pem(line)
            except ValueError as error:
                raise ValueError(f"{site}: {error}") from None
        shared = [site for site, key in keys.items() if list(keys.values()).count(key) > 1]
        if shared:
            raise ValueError(f"{' and '.join(shared)} have the same key; each needs one of its own")
        return dict(sorted(nodes.items()))


class AcceptedStudy(Section):
    """A study that this site answers for. Its entry in the settings is the administrator's consent."""

    study: Annotated[Place, Field(description="The study file, with this site's [columns].")]
    fingerprint: Annotated[Text, Field(description="What `fdtr study fingerprint` prints of it.")]
    data: Annotated[Place | None, Field(description="This site's table. It stays here.")] = None
    db: Annotated[
        DatabaseAddress | None,
        Field(description="In place of `data`, a database: duckdb:FILE or postgresql://USER@HOST/DATABASE."),
    ] = None
    table: Annotated[Text | None, Field(description="The table or view of `db`.")] = None
    policy: Annotated[
        Place | None, Field(description="Where the finished policy goes; beside the state if absent.")
    ] = None
    receive_only: Annotated[bool, Field(description="Send nothing, and learn from the others' total.")] = False
    releases: Annotated[
        Whole, Field(ge=1, le=100, description="How many different messages may leave for it without asking anew.")
    ] = 1

    @model_validator(mode="after")
    def _check_table(self) -> Self:
        named = (self.data is not None, self.db is not None, self.table is not None)
        if named not in ((True, False, False), (False, True, True)):
            raise ValueError("name this site's table: either data = FILE, or db = ADDRESS with table = NAME")
        return self

    @property
    def source(self) -> Path | DatabaseTable:
        """The site's table: its path, or its name in a database."""
        return self.data if self.data is not None else DatabaseTable(self.db or "", self.table or "")


class SiteSettings(_Settings):
    """site.toml."""

    site: Annotated[Text, Field(description="This site's name, as in the roster.")]
    hub: Annotated[Endpoint, Field(description="What the hub told: host and port.")]
    authority: Annotated[
        Place | None, Field(description="Who signed the hub's certificate; the system's if absent.")
    ] = None
    node_key: Annotated[Place, Field(description="What `fdtr keys node` wrote.")]
    key: Annotated[Place, Field(description="This site's private key, whose public half is on the roster.")]
    state: Annotated[Place, Field(description="Ledger, secrets, audit and logs; readable by its owner alone.")]
    health_port: Annotated[Port | None, Field(description="On loopback; none if absent.")] = None
    studies: Annotated[tuple[AcceptedStudy, ...], Field(min_length=1)]

    @property
    def audit(self) -> Path:
        """The log of everything that was asked, checked and sent."""
        return self.state / "audit.jsonl"


def require_private(what: str, path: Path) -> None:
    """Refuse a file that other users can read."""
    mode = _mode(what, path)
    if not stat.S_ISREG(mode):
        raise InvalidSettings(f"{what} {path} is no file.")
    if mode & 0o077:
        raise Exposed(f"{what} {path} can be read by others. Close it with: chmod 600 {shlex.quote(str(path))}")


def require_private_folder(what: str, path: Path) -> None:
    """Refuse a folder that other users can read."""
    if _mode(what, path) & 0o077:
        raise Exposed(f"{what} {path} can be read by others. Close it with: chmod 700 {shlex.quote(str(path))}")


def _mode(what: str, path: Path) -> int:
    try:
        return path.stat().st_mode
    except OSError as error:
        raise InvalidSettings(f"{what} {path} could not be read: {error.strerror}.") from None


def private_folder(what: str, path: Path) -> Path:
    """Make the folder if it is missing; refuse one that other users can read."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise InvalidSettings(f"{what} {path} could not be made: {error.strerror}.") from None
    require_private_folder(what, path)
    return path


def require_owner(state: Path) -> None:
    """Refuse a state folder of another user's service: that service could neither use nor replace what we write."""
    for folder in (state, *state.parents):
        try:
            owner = folder.stat().st_uid
        except PermissionError:
            continue  # a parent folder that keeps us out has the owner that we look for
        except OSError:
            return  # the folder does not exist yet
        if owner != os.geteuid():
            raise ServiceError(
                f"{folder} belongs to {_user(owner)}, who runs the service. Nothing was done. Run the "
                f"same as that user: sudo -u {_user(owner)} fdtr …"
            )
        return


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"'#{number}'"  # as sudo takes it
