"""Certificates for tests, made with the openssl command."""

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

_CA = """
[ca]
default_ca = here
[here]
database = index.txt
new_certs_dir = .
rand_serial = yes
default_md = sha256
policy = any
unique_subject = no
[any]
countryName = optional
organizationName = optional
organizationalUnitName = optional
commonName = optional
emailAddress = optional
UID = optional
[req]
distinguished_name = nobody
[nobody]
[authority]
basicConstraints = critical, CA:true
keyUsage = critical, keyCertSign, cRLSign
[peer]
basicConstraints = CA:false
subjectAltName = DNS:localhost, IP:127.0.0.1
"""
_CURVE = "-newkey ec -pkeyopt ec_paramgen_curve:P-256"


class Identity(NamedTuple):
    certificate: Path
    key: Path
    both: Path
    """Certificate and key in one file, for ssl.keystore.location."""


class Authority:
    """A certificate authority."""

    def __init__(self, folder: Path, name: str = "Suwi tests") -> None:
        if shutil.which("openssl") is None:
            pytest.skip("no openssl command")
        folder.mkdir(parents=True)
        self._folder = folder
        self.certificate = folder / "ca.pem"
        (folder / "ca.cnf").write_text(_CA)
        (folder / "index.txt").touch()
        self._run(
            f"req -x509 {_CURVE} -nodes -days 3650 -config ca.cnf -extensions authority "
            "-keyout ca.key -out ca.pem -subj",
            f"/CN={name}",
        )

    def issue(
        self, name: str, subject: str = "", *, password: str = "", expired: bool = False
    ) -> Identity:
        """A certificate for localhost, or an expired one."""
        folder = self._folder
        protection = ("-passout", f"pass:{password}") if password else ("-nodes",)
        self._run(
            f"req {_CURVE} -config ca.cnf -keyout {name}.key -out {name}.csr -utf8 "
            "-multivalue-rdn -subj",
            subject or f"/CN={name}",
            *protection,
        )
        end = "20200201000000Z" if expired else "20490101000000Z"
        self._run(
            f"ca -batch -notext -preserveDN -utf8 -config ca.cnf -extensions peer -cert ca.pem "
            f"-keyfile ca.key -in {name}.csr -out {name}.pem "
            f"-startdate 20200101000000Z -enddate {end}"
        )
        certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
        both = folder / f"{name}-both.pem"
        both.write_bytes(certificate.read_bytes() + key.read_bytes())
        return Identity(certificate, key, both)

    def pkcs12(self, identity: Identity, password: str) -> Path:
        target = identity.both.with_suffix(".p12")
        words = f"pkcs12 -export -in {identity.both} -out {target} -passout"
        self._run(words, f"pass:{password}")
        return target

    def _run(self, words: str, *more: str) -> None:
        done = subprocess.run(
            ["openssl", *words.split(), *more],
            cwd=self._folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def der(certificate: Path) -> bytes:
    command = ["openssl", "x509", "-in", str(certificate), "-outform", "DER"]
    return subprocess.run(command, capture_output=True, check=True).stdout
