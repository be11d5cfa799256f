"""docs/spark-source.md matches the code."""

from suwi.spark.option_table import TABLE
from tools.spark_docs import TARGET, render


def test_the_table_of_options_is_up_to_date() -> None:
    page = TARGET.read_text()
    assert page == render(page), "run `make docs`"


def test_every_option_is_on_the_page() -> None:
    page = TARGET.read_text()
    page += TARGET.with_name("spark-sinks.md").read_text()
    page += TARGET.with_name("spark-tables.md").read_text()
    assert [option.name for option in TABLE if f"`{option.name}`" not in page] == []
