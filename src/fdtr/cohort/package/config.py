"""The four fields that a site's analyst fills in."""

import json
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, field_validator

from fdtr import container
from fdtr.errors import InvalidSettings
from fdtr.study.faults import readable
from fdtr.study.sections import Section, Text

MOST_BYTES = 2**16


class Config(Section):
    """config.json, as CLIF projects have one."""

    site_name: Annotated[Text, Field(description="As the study knows this site.")] = "YOUR-SITE"
    tables_path: Annotated[Text, Field(description="The folder of CLIF tables.")] = "/path/to/clif/tables"
    file_type: Literal["parquet", "csv"] = "parquet"
    time_zone: Annotated[Text, Field(description="Of times that state none.")] = "UTC"

    @field_validator("site_name", "tables_path")
    @classmethod
    def _check_filled_in(cls, value: str) -> str:
        if value in ("YOUR-SITE", "/path/to/clif/tables"):
            raise ValueError("still says what it said when the package was made; write what it is at this site")
        return value

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read config.json; every fault is named."""
        content = container.read_bounded(path, MOST_BYTES, "a site's config.json")
        try:
            given = json.loads(content.decode("utf-8-sig"))
        except (ValueError, RecursionError):
            raise InvalidSettings(
                f"{path} is not valid JSON in UTF-8. Is a comma or a quote missing? In a Windows path, write / for \\."
            ) from None
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise InvalidSettings(f"{path} is not valid:\n" + "\n".join(readable(error, cls, given))) from None

    @staticmethod
    def to_fill_in() -> str:
        """The file as it is handed out."""
        names = Config.model_fields
        return json.dumps({name: field.default for name, field in names.items()}, indent=2) + "\n"
