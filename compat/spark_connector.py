"""Jars for the installed Spark from Maven: its own Kafka connector, and Iceberg's runtime.

Each is fetched once; `Unavailable` says what is missing.
"""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from compat.kafka import Unavailable

_HERE = Path(__file__).parent
_JARS = _HERE.parent / ".kafka"
# Not every PySpark has a connector of its own version in every mirror of Maven Central; these, with
# the version of its authentication part, work with it.
_FALLBACKS = (("4.2.0", "4.2.0"), ("4.2.0", "4.0.0"))


def connector_jars() -> list[str]:
    """Paths for `spark.jars`. Raises `Unavailable`."""
    import pyspark

    why = ""
    for versions in ((pyspark.__version__, pyspark.__version__), *_FALLBACKS):
        try:
            return _jars_of(*versions)
        except Unavailable as error:
            why = str(error)
    raise Unavailable(why)


def _jars_of(version: str, token_version: str) -> list[str]:
    folder = f"spark-connector-{version}-{token_version}"
    missing = _JARS / folder / ".missing"
    if missing.exists():
        raise Unavailable(f"Maven has no connector {version}")
    versions = {"spark.version": version, "token.version": token_version}
    try:
        return _fetch("spark-connector.xml", folder, versions)
    except Unavailable as error:
        if "Could not find artifact org.apache.spark" in str(error):
            missing.parent.mkdir(parents=True, exist_ok=True)
            missing.touch()
        raise


def iceberg_jars() -> list[str]:
    """Iceberg's for Spark, and those of the installed Spark. Raises `Unavailable`."""
    import pyspark

    of_spark = Path(pyspark.__file__).parent / "jars"
    return [*_fetch("iceberg.xml", "iceberg", {}), f"{of_spark}/*"]


def _fetch(project: str, folder: str, properties: Mapping[str, str]) -> list[str]:
    jars = _JARS / folder
    complete = jars / ".complete"
    if not complete.exists():
        if shutil.which("mvn") is None:
            raise Unavailable("there is no `mvn` on the path to fetch jars with")
        fetched = subprocess.run(
            [
                "mvn",
                "--quiet",
                "--batch-mode",
                f"--file={_HERE / project}",
                *(f"-D{name}={value}" for name, value in properties.items()),
                f"-DoutputDirectory={jars}",
                "dependency:copy-dependencies",
            ],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if fetched.returncode:
            raise Unavailable(f"Maven could not fetch {folder}:\n{fetched.stdout[-2000:]}")
        complete.touch()
    return sorted(str(jar) for jar in jars.glob("*.jar"))
