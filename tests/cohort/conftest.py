"""What the tests of extraction share: both engines."""

from collections.abc import Iterator

import pytest

from postgres_server import running_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The address of a PostgreSQL server that lives as long as the tests."""
    with running_server() as address:
        yield address


@pytest.fixture(params=["duckdb", pytest.param("postgresql", marks=pytest.mark.database)])
def engine(request: pytest.FixtureRequest) -> str:
    """The address of an empty database, of each engine in turn."""
    return "duckdb:" if request.param == "duckdb" else str(request.getfixturevalue("postgres"))
