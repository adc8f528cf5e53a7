"""The two settings files: hub.toml and site.toml. Paths in them start at the file's own folder."""

import errno
import tomllib
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, ValidationError, ValidationInfo, field_validator

from fdtr.errors import InvalidSettings
from fdtr.exchange.flower.hosts import host_of
from fdtr.exchange.flower.node_keys import public_pem
from fdtr.signing import check_site_name
from fdtr.study.faults import readable
from fdtr.study.sections import Section, Text, Whole

LEAST_DEADLINE = 5
MOST_DEADLINE = 86400
_FOLDER = "folder"


def _from_here(path: Path, info: ValidationInfo) -> Path:
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


def _host_and_port(text: str) -> str:
    if host_of(text) is None:
        raise ValueError('give a host and a port, such as "hub.example.org:8443" or "[2001:db8::1]:8443"')
    return text


def _listening(text: str) -> str:
    _host_and_port(text.replace("*", "everywhere") if text.startswith("*:") else text)
    return text


Place = Annotated[Path, AfterValidator(_from_here)]
Endpoint = Annotated[Text, AfterValidator(_host_and_port)]
Listening = Annotated[Text, AfterValidator(_listening)]
Port = Annotated[Whole, Field(ge=1, le=65535)]


class _Settings(Section):
    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a settings file; every fault is named at once."""
        try:
            given: Any = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
            raise InvalidSettings(f"The settings {path} could not be read: {reason}.") from None
        except tomllib.TOMLDecodeError as error:
            raise InvalidSettings(f"{path} is not valid TOML: {error}.") from None
        try:
            return cls.model_validate(given, context={_FOLDER: path.absolute().parent})
        except ValidationError as error:
            raise InvalidSettings("\n".join([f"{path}:", *readable(error, cls, given)])) from None


class Tls(Section):
    """The certificate that sites see."""

    certificate: Annotated[Place, Field(description="With the chain above it, in PEM.")]
    key: Annotated[Place, Field(description="Its private key, readable by its owner alone.")]


class HubSettings(_Settings):
    """hub.toml."""

    folder: Annotated[Place, Field(description="The hub's copy of the study's folder, as `fdtr hub open` makes it.")]
    key: Annotated[Place, Field(description="The hub's private key, whose public half is on the roster.")]
    state: Annotated[Place, Field(description="Where the service keeps its own files.")]
    listen: Annotated[Listening, Field(description="Where the front listens.")] = "0.0.0.0:8443"
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
        for site, line in nodes.items():
            check_site_name(site)
            try:
                public_pem(line)
            except ValueError as error:
                raise ValueError(f"{site}: {error}") from None
        shared = [
            site for site in nodes if [public_pem(line) for line in nodes.values()].count(public_pem(nodes[site])) > 1
        ]
        if shared:
            raise ValueError(f"{' and '.join(shared)} have the same key; each needs one of its own")
        return dict(sorted(nodes.items()))


class AcceptedStudy(Section):
    """A study that this site answers for: its entry here is the administrator's consent."""

    study: Annotated[Place, Field(description="The study file, with this site's [columns].")]
    fingerprint: Annotated[Text, Field(description="What `fdtr study fingerprint` prints of it.")]
    data: Annotated[Place, Field(description="This site's table. It stays here.")]
    policy: Annotated[
        Place | None, Field(description="Where the finished policy goes; beside the state if absent.")
    ] = None
    releases: Annotated[
        Whole, Field(ge=1, le=100, description="How many different messages may leave for it without asking anew.")
    ] = 1


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
        """Where everything that was asked, checked and sent is written down."""
        return self.state / "audit.jsonl"
