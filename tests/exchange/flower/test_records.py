"""Requests and answers as Flower's records: read as they were written, and in no other shape."""

import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Message, RecordDict

from fdtr.exchange.flower.records import FORMAT, answer_record, read_answer, read_request, request_record
from fdtr.exchange.remote.requests import Answer, Outcome, Phase, Posting, Request
from fdtr.signing import HUB
from in_process_grid import InProcessGrid


def message_of(content: RecordDict, kind: str = "query.sums") -> Message:
    InProcessGrid({})
    return Message(content, 2, kind)


def test_records_are_read_as_they_were_written():
    for postings in ((), (Posting("begun", HUB, b"\x00\xff"), Posting("keys", "St. Mary's", b""))):
        request = Request("f" * 64, 3, Phase.SUMS, postings)
        assert read_request(message_of(request_record(request))) == request
        answer = Answer("St. Mary's", Outcome.DECLINED, postings)
        assert read_answer(message_of(answer_record(answer))) == answer


def test_records_of_another_shape_are_not_read():
    good = request_record(Request("f" * 64, 3, Phase.SUMS, (Posting("begun", HUB, b"x"),)))
    assert read_request(message_of(good, "query.keys")) is None
    assert read_request(message_of(RecordDict())) is None
    assert read_answer(message_of(good)) is None
    for change in (
        {"round": "3"}, {"round": True}, {"fingerprint": b"f"}, {"phase": "keys"}, {"phase": "other"}, {"parts": []},
        {"contents": ["x"]}, {"senders": [1]}, {"contents": b"x"}, {"more": 1},
    ):  # fmt: skip
        record = ConfigRecord({**good["fdtr"], **change})
        assert read_request(message_of(RecordDict({"fdtr": record}))) is None, change


def test_records_of_another_format_are_refused_by_name(caplog):
    newer = request_record(Request("f" * 64, 3, Phase.SUMS, ()))
    newer["fdtr"]["format"] = FORMAT + 1
    newer["fdtr"]["more"] = "which a later version adds"
    assert read_request(message_of(newer)) is None
    assert f"has format {FORMAT + 1}; this version of fdtr reads {FORMAT}" in caplog.text


def test_records_of_format_1_are_read_forever():
    """As every party of this format writes them, field by field."""
    asked = Request("f" * 64, 3, Phase.SUMS, (Posting("begun", HUB, b"x"),))
    said = Answer("a", Outcome.DONE, (Posting("sums", "a", b"y"),))
    of_request = {
        "format": 1, "fingerprint": "f" * 64, "round": 3, "phase": "sums",
        "parts": ["begun"], "senders": ["hub"], "contents": [b"x"],
    }  # fmt: skip
    of_answer = {"format": 1, "site": "a", "outcome": "done", "parts": ["sums"], "senders": ["a"], "contents": [b"y"]}
    assert dict(request_record(asked)["fdtr"]) == of_request
    assert dict(answer_record(said)["fdtr"]) == of_answer
    assert read_request(message_of(RecordDict({"fdtr": ConfigRecord(of_request)}))) == asked
    assert read_answer(message_of(RecordDict({"fdtr": ConfigRecord(of_answer)}))) == said
