"""Requests and answers as Flower records: one ConfigRecord with lists of parts, senders and contents."""

import logging
from typing import TypeGuard

from flwr.app import ConfigRecord, Message, RecordDict

from fdtr.exchange.remote.requests import Answer, Outcome, Phase, Posting, Request

log = logging.getLogger("fdtr.exchange.flower")

FORMAT = 1
"""Format of the record; the postings in it have formats of their own. Another format is refused by number."""
_NAME = "fdtr"
_PHASES = {f"query.{phase.value}": phase for phase in Phase}


def request_record(request: Request) -> RecordDict:
    """The record that the hub sends."""
    return _record(
        request.postings, fingerprint=request.fingerprint, round=request.round, phase=request.phase.value
    )  # fmt: skip


def answer_record(answer: Answer) -> RecordDict:
    """The record that a site sends back."""
    return _record(answer.postings, site=answer.site, outcome=answer.outcome.value)


def read_request(message: Message) -> Request | None:
    """The request in a message, or None if it cannot be read."""
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
    """The answer in a message, or None if it cannot be read."""
    record = _only(message, {"site", "outcome"})
    if record is None:
        return None
    site, outcome, postings = record["site"], record["outcome"], _postings(record)
    if not isinstance(site, str) or outcome not in list(Outcome) or postings is None:
        return None
    return Answer(site, Outcome(str(outcome)), postings)


def _record(postings: tuple[Posting, ...], **fields: str | int) -> RecordDict:
    columns: dict[str, list[str] | list[bytes]] = {
        "parts": [posting.part for posting in postings],
        "senders": [posting.sender for posting in postings],
        "contents": [posting.content for posting in postings],
    }
    return RecordDict({_NAME: ConfigRecord({"format": FORMAT, **fields, **columns})})


def _only(message: Message, fields: set[str]) -> ConfigRecord | None:
    """The only record of a message, if it has exactly the right fields; otherwise None."""
    if not message.has_content() or set(message.content) != {_NAME}:
        return None
    record = message.content[_NAME]
    if not isinstance(record, ConfigRecord):
        return None
    number = record.get("format")
    if number != FORMAT:
        shown = number if type(number) is int else "?"
        log.error("A message has format %s; this version of fdtr reads %s.", shown, FORMAT)
        return None
    return record if set(record) == fields | {"format", "parts", "senders", "contents"} else None


def _postings(record: ConfigRecord) -> tuple[Posting, ...] | None:
    names, senders, contents = record["parts"], record["senders"], record["contents"]
    if not (_are_texts(names) and _are_texts(senders) and _are_bytes(contents)):
        return None
    if not len(names) == len(senders) == len(contents):
        return None
    return tuple(Posting(*fields) for fields in zip(names, senders, contents, strict=True))


def _are_texts(values: object) -> TypeGuard[list[str]]:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _are_bytes(values: object) -> TypeGuard[list[bytes]]:
    return isinstance(values, list) and all(isinstance(value, bytes) for value in values)
