"""The four fields that a site's analyst fills in."""

import json
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, ValidationInfo, field_validator

from fdtr import container
from fdtr.errors import InvalidSettings
from fdtr.study.faults import readable
from fdtr.study.sections import Section, Text

MOST_BYTES = 2**16


TO_FILL_IN = {
    "site_name": "YOUR-SITE",
    "tables_path": "/path/to/clif/tables",
    "file_type": "parquet",
    "time_zone": "UTC",
}
"""The file as it is handed out."""


class Config(Section):
    """config.json, as CLIF projects have one. All four are needed: a forgotten zone would move every time."""

    site_name: Annotated[Text, Field(description="As the study knows this site.")]
    tables_path: Annotated[Text, Field(description="The folder of CLIF tables.")]
    file_type: Literal["parquet", "csv"]
    time_zone: Annotated[Text, Field(description="Of times that state none.")]

    @field_validator("site_name", "tables_path")
    @classmethod
    def _check_filled_in(cls, value: str, field: ValidationInfo) -> str:
        if value == TO_FILL_IN[str(field.field_name)]:
            raise ValueError("still says what it said when the package was made; write what it is at this site")
        return value

    def tables(self, package: Path) -> Path:
        """The folder of CLIF tables, as seen from the package; ~ is the home folder."""
        try:
            return package / Path(self.tables_path).expanduser()
        except RuntimeError:  # ~name of somebody who has no home here
            raise InvalidSettings(
                f"{package / 'config.json'}: tables_path begins with ~, and no such home folder is known here. Write "
                "the path in full."
            ) from None

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
        if not isinstance(given, dict):
            raise InvalidSettings(
                f"{path} is not valid: write its four fields in braces, such as "
                '{"site_name": "north", "tables_path": "/data/clif", "file_type": "parquet", "time_zone": "UTC"}.'
            )
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            raise InvalidSettings(f"{path} is not valid:\n" + "\n".join(readable(error, cls, given))) from None

    @staticmethod
    def to_fill_in() -> str:
        """The file as it is handed out."""
        return json.dumps(TO_FILL_IN, indent=2) + "\n"
