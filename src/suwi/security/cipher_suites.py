"""`ssl.cipher.suites`: translates the standard names that Kafka uses to OpenSSL's names.

Python can enable the suites of TLS 1.3 only all together, so a list must have all or none of them.
"""

import ssl
from collections.abc import Sequence
from typing import Final

_TLS_1_3: Final = frozenset(
    {"TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"}
)
_TLS_1_2: Final = {
    f"TLS_{exchange}_WITH_{standard}": f"{exchange.replace('_', '-')}-{name}"
    for exchange in ("ECDHE_ECDSA", "ECDHE_RSA", "DHE_RSA")
    for standard, name in (
        ("AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
        ("AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305"),
    )
}


def choose_cipher_suites(context: ssl.SSLContext, names: Sequence[str]) -> None:
    """Allow only these suites. Raises `ValueError` with the allowed names."""
    unknown = [name for name in names if name not in _TLS_1_2 and name not in _TLS_1_3]
    if unknown:
        allowed = ", ".join([*sorted(_TLS_1_3), *_TLS_1_2])
        raise ValueError(f"{unknown[0]!r} is not among {allowed}")
    for_1_3 = _TLS_1_3 & set(names)
    for_1_2 = [_TLS_1_2[name] for name in names if name in _TLS_1_2]
    if for_1_3 and for_1_3 != _TLS_1_3:
        missing = ", ".join(sorted(_TLS_1_3 - for_1_3))
        raise ValueError(
            f"the three suites of TLS 1.3 can only be enabled together: add {missing}, or none"
        )
    if not for_1_3:
        context.maximum_version = min(context.maximum_version, ssl.TLSVersion.TLSv1_2)
    if not for_1_2:
        context.minimum_version = max(context.minimum_version, ssl.TLSVersion.TLSv1_3)
    if context.minimum_version > context.maximum_version:
        raise ValueError("none of the suites is for a version in ssl.enabled.protocols")
    if for_1_2:
        context.set_ciphers(":".join(for_1_2))
