"""Feed the reader of messages what nobody sends, guided by coverage (atheris): python scripts/fuzz.py [SECONDS].

Whatever comes in is read or refused with an FdtrError. Another exception, an input that takes more than a second, or
more than 512 MB ends the run with the input that did it. Half of the inputs get a right checksum, so that they reach
what stands behind it.
"""

import sys
import tempfile
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

with atheris.instrument_imports(include=["fdtr.container", "fdtr.exchange", "fdtr.signing"]):
    from fdtr import container
    from fdtr.exchange import wire

import numpy as np

from fdtr.errors import FdtrError
from fdtr.summary import combine
from message_files import by_hand, header_text, open_bytes, refreshed, round_of, small_messages, small_study

STUDY = small_study()
HERE = round_of(STUDY)
MESSAGES = small_messages(STUDY)
MESSAGE = wire.encode_message(MESSAGES["a"], HERE)
TOTAL = wire.encode_total(combine(message.summary for message in MESSAGES.values()), HERE)
PAYLOAD = MESSAGE[wire.HEADER_BYTES :]
AUDIT = small_study(disclosure={"payload": "gram"})
GRAM = wire.encode_message(small_messages(AUDIT)["a"])


def read(data: bytes) -> None:
    """One input: its first byte says what becomes of the rest."""
    way, rest = data[:1], data[1:]
    try:
        if way < b"\x40":
            open_bytes(rest.ljust(len(MESSAGE), b" ")[: len(MESSAGE)], STUDY, HERE)
        elif way < b"\x80":  # any header, its checksum made right where it has a place for one
            text = rest.decode("utf-8", "replace")[:1900]
            try:
                content = refreshed(text, PAYLOAD)
            except ValueError:
                content = by_hand(text[:500], PAYLOAD)
            open_bytes(content, STUDY, HERE)
        elif way < b"\xa0":  # any numbers of Grams
            size = len(GRAM) - wire.HEADER_BYTES
            content = refreshed(header_text(GRAM), rest.ljust(size, b"\0")[:size])
            open_bytes(content, AUDIT, None)
        elif way < b"\xc0":  # any numbers
            flat = np.frombuffer(rest.ljust(len(PAYLOAD), b"\0")[: len(PAYLOAD)], dtype="<f8")
            open_bytes(refreshed(header_text(MESSAGE), flat.tobytes()), STUDY, HERE)
        else:
            wire._total(container.decode(rest, "total", "the input"), "the input", STUDY, HERE)
    except FdtrError:
        return


def main() -> None:
    """Start from sound files, for as many seconds as asked."""
    seconds = sys.argv[1] if len(sys.argv) > 1 else "60"
    with tempfile.TemporaryDirectory() as folder:
        seeds = {
            "message": b"\x00" + MESSAGE,
            "header": b"\x40" + header_text(MESSAGE).encode(),
            "grams": b"\x80" + GRAM[wire.HEADER_BYTES :],
            "numbers": b"\xa0" + PAYLOAD,
            "total": b"\xc0" + TOTAL,
        }
        for name, content in seeds.items():
            (Path(folder) / name).write_bytes(content)
        limits = [f"-max_total_time={seconds}", "-timeout=1", "-rss_limit_mb=512", "-max_len=4096"]
        artifacts = f"-artifact_prefix={tempfile.gettempdir()}/fdtr-fuzz-"
        atheris.Setup([sys.argv[0], *limits, artifacts, "-print_final_stats=1", folder], read)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
