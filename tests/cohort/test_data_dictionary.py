"""The data dictionary as a page."""

from cohort_relations import Hand
from fdtr.cohort.data_dictionary import as_markdown


def test_the_dictionary_explains_its_headings():
    page = as_markdown(Hand().chart("sbp", -1, 90).extract("duckdb:").dictionary, "x: columns")
    assert "* **charted**: values that were read for the stays of the table" in page
    assert "each has 4 hours from the onset of sepsis" in page
    assert "| 60 to 200 | 10 | 5 | 1 | 0 |" in page
