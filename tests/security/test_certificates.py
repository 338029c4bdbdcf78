"""Names in certificates as Java writes them, and what else is read there."""

from __future__ import annotations

import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509 import NameAttribute
from cryptography.x509.name import _ASN1Type as Type
from cryptography.x509.oid import NameOID

from kbroker.security.certificates import java_name, read_certificate
from tests.certificates import Authority, Made, name


def of(*parts: NameAttribute | list[NameAttribute]) -> bytes:
    sets = [x509.RelativeDistinguishedName(part if isinstance(part, list) else [part]) for part in parts]
    return x509.Name(sets).public_bytes()


def cn(text: str, kind: Type | None = None) -> NameAttribute:
    return NameAttribute(NameOID.COMMON_NAME, text, kind)


NAMES = {
    of(
        NameAttribute(NameOID.COUNTRY_NAME, "DE"),
        NameAttribute(NameOID.STATE_OR_PROVINCE_NAME, "Bayern"),
        NameAttribute(NameOID.LOCALITY_NAME, "Ulm"),
        NameAttribute(NameOID.STREET_ADDRESS, "Weg 1"),
        NameAttribute(NameOID.ORGANIZATION_NAME, "a, b + c"),
        NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "one"),
        NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "two"),
        cn("me"),
    ): r"CN=me,OU=two,OU=one,O=a\, b \+ c,STREET=Weg 1,L=Ulm,ST=Bayern,C=DE",
    of(
        NameAttribute(NameOID.DOMAIN_COMPONENT, "org"),
        NameAttribute(NameOID.DOMAIN_COMPONENT, "example"),
        NameAttribute(NameOID.USER_ID, "u1"),
    ): "UID=u1,DC=example,DC=org",
    of(cn(' #x="<y>";\\ ')): r"CN=\ \#x\=\"\<y\>\"\;\\\ ",
    of(cn("Jürgen Ω")): "CN=Jürgen Ω",
    of([cn("a"), NameAttribute(NameOID.USER_ID, "b")]): None,
    of(NameAttribute(NameOID.EMAIL_ADDRESS, "a@b.c"), cn("x")): "CN=x,1.2.840.113549.1.9.1=#16056140622e63",
    of(NameAttribute(NameOID.SERIAL_NUMBER, "12"), NameAttribute(NameOID.TITLE, "Dr")): (
        "2.5.4.12=#0c024472,2.5.4.5=#13023132"
    ),
    of(cn("printable", Type.PrintableString)): "CN=printable",
    of(cn("t61", Type.T61String)): "CN=t61",
    of(cn(" ")): r"CN=\ ",
    b"\x30\x00": "",
}


@pytest.mark.parametrize("encoded", NAMES)
def test_a_name_is_written_as_java_does(encoded: bytes) -> None:
    expected = NAMES[encoded]
    assert expected is None or java_name(encoded) == expected


@pytest.mark.java
@pytest.mark.skipif(shutil.which("java") is None, reason="no Java on this machine")
def test_java_writes_the_same(tmp_path: Path) -> None:
    (tmp_path / "Names.java").write_text(
        """
        import java.util.HexFormat;
        public class Names {
            public static void main(String[] names) throws Exception {
                var out = new java.io.PrintStream(System.out, true, "UTF-8");
                for (var each : names)
                    out.println(new javax.security.auth.x500.X500Principal(HexFormat.of().parseHex(each)).getName());
            }
        }
        """
    )
    command = ["java", "-XX:TieredStopAtLevel=1", str(tmp_path / "Names.java"), *(each.hex() for each in NAMES)]
    said = subprocess.run(command, check=True, capture_output=True).stdout.decode().split("\n")
    assert said[: len(NAMES)] == [java_name(each) for each in NAMES]


def test_a_certificate_says_whose_it_is_and_until_when(tmp_path: Path) -> None:
    made = Authority(tmp_path).make("CN=x,O=y", "a.example", "10.0.0.1", days=7)
    found = read_certificate(made.der)
    assert (found.name, len(found.other_names)) == ("CN=x,O=y", 2)
    assert found.not_after == made.certificate.not_valid_after_utc
    assert found.not_before < datetime.now(UTC) < found.not_after
    assert read_certificate(Made(name("CN=z")).der).other_names == frozenset()


def test_what_is_no_certificate_is_a_value_error(tmp_path: Path) -> None:
    whole = Made(name("CN=z")).der
    for size in range(len(whole)):
        with pytest.raises(ValueError, match=r".*"):
            read_certificate(whole[:size])
