"""Requests and answers as Flower's records: one ConfigRecord, with a list of bytes."""

import logging
from typing import TypeGuard

from flwr.app import ConfigRecord, Message, RecordDict

from fdtr.exchange.remote import Answer, Outcome, Phase, Posting, Request

log = logging.getLogger("fdtr.exchange.flower")

FORMAT = 1
"""Of the record; what it carries says its own. A party refuses another by name."""
_NAME = "fdtr"
_PHASES = {f"query.{phase.value}": phase for phase in Phase}


def request_record(request: Request) -> RecordDict:
    """What the hub sends."""
    return _record(
        request.postings, fingerprint=request.fingerprint, round=request.round, phase=request.phase.value
    )  # fmt: skip


def answer_record(answer: Answer) -> RecordDict:
    """What a site sends back."""
    return _record(answer.postings, site=answer.site, outcome=answer.outcome.value)


def read_request(message: Message) -> Request | None:
    """The request in a message, or None where there is none that can be read."""
    record = _only(message, {"fingerprint", "round", "phase"})
    if record is None:
        return None
    fingerprint, number, postings = record["fingerprint"], record["round"], _postings(record)
    phase = _PHASES.get(message.metadata.message_type)
    if (
        not isinstance(fingerprint, str)
        or type(number) is not int
        or phase is None
        or phase.value != record["phase"]
        or postings is None
    ):
        return None
    return Request(fingerprint, number, phase, postings)


def read_answer(message: Message) -> Answer | None:
    """The answer in a message, or None where there is none that can be read."""
    record = _only(message, {"site", "outcome"})
    if record is None:
        return None
    site, outcome, postings = record["site"], record["outcome"], _postings(record)
    if not isinstance(site, str) or outcome not in list(Outcome) or postings is None:
        return None
    return Answer(site, Outcome(str(outcome)), postings)


def _record(postings: tuple[Posting, ...], **fields: str | int) -> RecordDict:
    columns: dict[str, list[str] | list[bytes]] = {
        "parts": [one.part for one in postings],
        "senders": [one.sender for one in postings],
        "contents": [one.content for one in postings],
    }
    return RecordDict({_NAME: ConfigRecord({"format": FORMAT, **fields, **columns})})


def _only(message: Message, fields: set[str]) -> ConfigRecord | None:
    """The one record of a message, where it has the fields that it should and no others."""
    if not message.has_content() or set(message.content) != {_NAME}:
        return None
    record = message.content[_NAME]
    if not isinstance(record, ConfigRecord):
        return None
    if record.get("format") != FORMAT:
        told = record.get("format")
        log.error("A message has format %s; this version of fdtr reads %s.", told if type(told) is int else "?", FORMAT)
        return None
    return record if set(record) == fields | {"format", "parts", "senders", "contents"} else None


def _postings(record: ConfigRecord) -> tuple[Posting, ...] | None:
    names, senders, contents = record["parts"], record["senders"], record["contents"]
    if not (_are(names, str) and _are(senders, str) and _are_bytes(contents)):
        return None
    if not len(names) == len(senders) == len(contents):
        return None
    return tuple(Posting(*one) for one in zip(names, senders, contents, strict=True))


def _are(values: object, kind: type[str]) -> TypeGuard[list[str]]:
    return isinstance(values, list) and all(isinstance(value, kind) for value in values)


def _are_bytes(values: object) -> TypeGuard[list[bytes]]:
    return isinstance(values, list) and all(isinstance(value, bytes) for value in values)
