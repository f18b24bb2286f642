"""The page of docs says what the tests of this folder show."""

from .table import PAGE, table


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == table(), "run python -m tests.exporters.table"
