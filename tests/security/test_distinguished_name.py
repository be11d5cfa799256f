"""Subjects of certificates as text; the expected ones are what Java's X500Principal prints."""

from pathlib import Path

import pytest

from suwi.security.distinguished_name import subject_of
from tests.security.certificates import Authority, der


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("names") / "ca")


@pytest.mark.parametrize(
    ("subject", "text"),
    [
        ("/CN=alice", "CN=alice"),
        ("/C=KR/O=Example, Inc./OU=data/CN=alice", "CN=alice,OU=data,O=Example\\, Inc.,C=KR"),
        ("/CN=a+UID=b/O=x", "O=x,CN=a+UID=b"),
        ("/CN= lead and  trail ", "CN=\\ lead and  trail\\ "),
        ('/CN=#hash=eq;semi<>"q"\\\\back', 'CN=\\#hash\\=eq\\;semi\\<\\>\\"q\\"\\\\back'),
        ("/CN=수위/emailAddress=a@b.c", "1.2.840.113549.1.9.1=#16056140622e63,CN=수위"),
        ("/CN=plus\\+sign/OU=a\\,b", "OU=a\\,b,CN=plus\\+sign"),
    ],
)
def test_a_subject_is_formatted_as_in_java(authority: Authority, subject: str, text: str) -> None:
    identity = authority.issue(f"n{abs(hash(subject))}", subject)
    assert subject_of(der(identity.certificate)) == text


def test_a_long_subject_is_read(authority: Authority, tmp_path: Path) -> None:
    units = [f"unit {n:02} {'x' * 50}" for n in range(30)]
    identity = authority.issue("long", "".join(f"/OU={unit}" for unit in units))
    expected = ",".join(f"OU={unit}" for unit in reversed(units))
    assert subject_of(der(identity.certificate)) == expected
