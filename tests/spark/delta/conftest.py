"""Both forms in which PySpark asks a stream for its offsets."""

import pytest


@pytest.fixture(params=["new", "old"])
def spark_release(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """As PySpark 4.2 and newer ask for offsets, and as 4.1 does."""
    from suwi.spark import stream_reader
    from suwi.spark.delta.reader import TableSource

    monkeypatch.setattr(TableSource, "ask_every_ms", 0)
    if request.param == "old":
        monkeypatch.setattr(stream_reader, "HAS_ADMISSION_CONTROL", False)
    elif not stream_reader.HAS_ADMISSION_CONTROL:
        pytest.skip("needs PySpark 4.2")
    return str(request.param)
