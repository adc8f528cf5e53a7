"""Requests and answers as Flower records: one ConfigRecord with lists of parts, senders and contents."""

import logging
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict

from fdtr.exchange.remote.requests import Answer, Outcome, Phase, Posting, Request

log = logging.getLogger("fdtr.exchange.flower")

FORMAT = 1
"""Format of the record; the postings in it have formats of their own. Another format is refused by number."""
_NAME = "fdtr"
_COLUMNS = {"parts": str, "senders": str, "contents": bytes}
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
    fields = _fields(message, {"fingerprint": str, "round": int, "phase": str})
    phase = _PHASES.get(message.metadata.message_type)
    if fields is None or phase is None or phase.value != fields["phase"]:
        return None
    return Request(fields["fingerprint"], fields["round"], phase, fields["postings"])


def read_answer(message: Message) -> Answer | None:
    """The answer in a message, or None if it cannot be read."""
    fields = _fields(message, {"site": str, "outcome": str})
    if fields is None or fields["outcome"] not in list(Outcome):
        return None
    return Answer(fields["site"], Outcome(fields["outcome"]), fields["postings"])


def _record(postings: tuple[Posting, ...], **fields: str | int) -> RecordDict:
    columns: dict[str, list[str] | list[bytes]] = {
        "parts": [posting.part for posting in postings],
        "senders": [posting.sender for posting in postings],
        "contents": [posting.content for posting in postings],
    }
    return RecordDict({_NAME: ConfigRecord({"format": FORMAT, **fields, **columns})})


def _fields(message: Message, types: dict[str, type]) -> dict[str, Any] | None:
    """The fields of a message's only record, and its `postings`; None unless it has exactly these fields and types."""
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
    fields: dict[str, Any] = dict(record)
    if set(fields) != {"format", *types, *_COLUMNS} or any(type(fields[name]) is not types[name] for name in types):
        return None
    columns = [fields[name] for name in _COLUMNS]
    kinds = zip(columns, _COLUMNS.values(), strict=True)
    if not all(isinstance(column, list) and all(isinstance(value, kind) for value in column) for column, kind in kinds):
        return None
    if len({len(column) for column in columns}) != 1:
        return None
    return {**fields, "postings": tuple(Posting(*posting) for posting in zip(*columns, strict=True))}
