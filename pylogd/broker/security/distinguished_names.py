"""The subject of a certificate as text, in the spelling of RFC 2253.

Java's `X500Principal.getName()` and Kafka use this spelling too, so principals have the same names.
"""

from __future__ import annotations

from typing import Final

from cryptography import x509
from cryptography.x509.oid import NameOID

_KEYWORDS: Final = {
    NameOID.COMMON_NAME: "CN", NameOID.COUNTRY_NAME: "C", NameOID.LOCALITY_NAME: "L",
    NameOID.STATE_OR_PROVINCE_NAME: "ST", NameOID.STREET_ADDRESS: "STREET", NameOID.ORGANIZATION_NAME: "O",
    NameOID.ORGANIZATIONAL_UNIT_NAME: "OU", NameOID.DOMAIN_COMPONENT: "DC", NameOID.USER_ID: "UID",
}  # fmt: skip
_ESCAPED: Final = frozenset(',+"\\<>;')


def subject_name(name: x509.Name) -> str:
    """Return a name with its last part first: `CN=app,OU=Team,O=Example,C=DE`.

    Types without a keyword in RFC 2253 are written by their number, with the value's DER encoding in hexadecimal.
    """
    return ",".join("+".join(map(_attribute, rdn)) for rdn in reversed(name.rdns))


def _attribute(attribute: x509.NameAttribute[str | bytes]) -> str:
    keyword = _KEYWORDS.get(attribute.oid)
    if keyword is None or not isinstance(attribute.value, str):
        return f"{attribute.oid.dotted_string}=#{_der_value(attribute).hex()}"
    return f"{keyword}={_escape(attribute.value)}"


def _escape(value: str) -> str:
    """Escape a value as RFC 2253, section 2.4, says."""
    text = "".join(f"\\{character}" if character in _ESCAPED else character for character in value)
    if text.startswith((" ", "#")):
        text = "\\" + text
    if value.endswith(" ") and len(value) > 1:
        text = text[:-1] + "\\ "
    return text


def _der_value(attribute: x509.NameAttribute[str | bytes]) -> bytes:
    """Return the encoded value: the last element of SEQUENCE { SET { SEQUENCE { type, value } } }."""
    data = x509.Name([attribute]).public_bytes()
    for _ in range(3):
        data = _content(data)
    return data[_size(data) :]


def _header(data: bytes) -> tuple[int, int]:
    """Return the sizes of an element's tag and length, and of its content."""
    if data[1] < 0x80:
        return 2, data[1]
    count = data[1] & 0x7F
    return 2 + count, int.from_bytes(data[2 : 2 + count], "big")


def _size(data: bytes) -> int:
    return sum(_header(data))


def _content(data: bytes) -> bytes:
    head, size = _header(data)
    return data[head : head + size]
