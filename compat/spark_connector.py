"""Spark's own Kafka connector from Maven, for the installed Spark.

`connector_jars` fetches it once; `Unavailable` says what is missing.
"""

import shutil
import subprocess
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
    jars = _JARS / f"spark-connector-{version}-{token_version}"
    missing, complete = jars / ".missing", jars / ".complete"
    if missing.exists():
        raise Unavailable(f"Maven has no connector {version}")
    if not complete.exists():
        if shutil.which("mvn") is None:
            raise Unavailable("there is no `mvn` on the path to fetch Spark's connector with")
        fetched = subprocess.run(
            [
                "mvn",
                "--quiet",
                "--batch-mode",
                f"--file={_HERE / 'spark-connector.xml'}",
                f"-Dspark.version={version}",
                f"-Dtoken.version={token_version}",
                f"-DoutputDirectory={jars}",
                "dependency:copy-dependencies",
            ],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if fetched.returncode:
            if "Could not find artifact org.apache.spark" in fetched.stdout:
                jars.mkdir(parents=True, exist_ok=True)
                missing.touch()
            raise Unavailable(f"Maven could not fetch Spark's connector:\n{fetched.stdout[-2000:]}")
        complete.touch()
    return sorted(str(jar) for jar in jars.glob("*.jar"))
