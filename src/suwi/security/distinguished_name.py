"""The subject of an X.509 certificate as text: `CN=alice,OU=data,O=Example`.

Formatted exactly as Java does (RFC 2253, most specific name first), because existing access rules
contain principals in this form. OpenSSL has verified the certificate; this module only reads the
subject.
"""

from collections.abc import Iterator
from ssl import SSLObject
from typing import Final, NamedTuple

from suwi.security.principal import ANONYMOUS, Principal, user

_SEQUENCE: Final = 0x30
_SET: Final = 0x31
_VERSION: Final = 0xA0
_ENCODINGS: Final = {
    0x0C: "utf-8",
    0x12: "ascii",  # numeric
    0x13: "ascii",  # printable
    0x14: "latin-1",  # T61
    0x16: "ascii",  # IA5
    0x1C: "utf-32-be",
    0x1E: "utf-16-be",
}
_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
_TO_ESCAPE: Final = frozenset(',=+<>#;"\\')


def principal_of_peer(tls: SSLObject) -> Principal:
    """The principal of the peer's certificate (verified by TLS), or ANONYMOUS without one."""
    certificate = tls.getpeercert(binary_form=True)
    return ANONYMOUS if certificate is None else user(subject_of(certificate))


class _Value(NamedTuple):
    tag: int
    content: bytes
    whole: bytes


def subject_of(certificate: bytes) -> str:
    """The subject of a certificate in DER form."""
    signed = next(_values(next(_values(certificate)).content))
    parts = [value for value in _values(signed.content) if value.tag != _VERSION]
    # serial number, signature algorithm, issuer, validity, subject
    subject = parts[4]
    assert subject.tag == _SEQUENCE
    names = list(_values(subject.content))
    assert all(name.tag == _SET for name in names)
    texts = ["+".join(map(_attribute, _values(name.content))) for name in names]
    return ",".join(reversed(texts))


def _attribute(attribute: _Value) -> str:
    kind, value = _values(attribute.content)
    identifier = _object_identifier(kind.content)
    keyword = _KEYWORDS.get(identifier)
    encoding = _ENCODINGS.get(value.tag)
    if keyword is None or encoding is None:
        return f"{keyword or identifier}=#{value.whole.hex()}"
    return f"{keyword}={_escape(value.content.decode(encoding, 'replace'))}"


def _escape(text: str) -> str:
    escaped = [f"\\{c}" if c in _TO_ESCAPE else "\\00" if c == "\0" else c for c in text]
    inner = text.strip(" ")
    leading = len(text) - len(text.lstrip(" "))
    trailing = len(text) - leading - len(inner)
    for at in [*range(leading), *range(len(text) - trailing, len(text))]:
        escaped[at] = "\\ "
    return "".join(escaped)


def _values(data: bytes) -> Iterator[_Value]:
    at = 0
    while at < len(data):
        tag, length, content_at = data[at], data[at + 1], at + 2
        if length & 0x80:
            content_at += length & 0x7F
            length = int.from_bytes(data[at + 2 : content_at], "big")
        end = content_at + length
        yield _Value(tag, data[content_at:end], data[at:end])
        at = end


def _object_identifier(content: bytes) -> str:
    numbers: list[int] = []
    number = 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(str(n) for n in [first, numbers[0] - 40 * first, *numbers[1:]])
