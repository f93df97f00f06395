"""Keys that anybody can sign for are no keys."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node_agent.protocol import signing

P = 2**255 - 19
D = -121665 * pow(121666, -1, P) % P
Point = tuple[int, int]


def add(one: Point, other: Point) -> Point:
    """Edwards addition (RFC 8032, section 5.1.4), affine."""
    (x1, y1), (x2, y2) = one, other
    product = D * x1 * x2 * y1 * y2 % P
    x = (x1 * y2 + x2 * y1) * pow(1 + product, -1, P) % P
    return x, (y1 * y2 + x1 * x2) * pow(1 - product, -1, P) % P


def decode(encoded: bytes) -> Point | None:
    """A point from its encoding, non-canonical ones too; None if it is on no curve."""
    y = (int.from_bytes(encoded, "little") & (2**255 - 1)) % P
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if x * x % P != square:
        x = x * pow(2, (P - 1) // 4, P) % P
    return (x, y) if x * x % P == square else None


def order_divides_eight(encoded: bytes) -> bool:
    point = decode(encoded)
    assert point is not None
    for _ in range(3):
        point = add(point, point)
    return point == (0, 1)


def test_every_listed_key_is_of_small_order_and_all_of_them_are_listed() -> None:
    listed = signing._SMALL_ORDER  # pyright: ignore[reportPrivateUsage]
    assert all(order_divides_eight(encoded) for encoded in listed)
    # Eight points; by y alone five, and two of those have a second encoding below 2**255.
    assert len({int.from_bytes(encoded, "little") % P for encoded in listed}) == 5
    assert len(listed) == 7


@pytest.mark.parametrize("sign_bit", [0, 0x80])
def test_a_weak_key_proves_nothing(sign_bit: int) -> None:
    for encoded in signing._SMALL_ORDER:  # pyright: ignore[reportPrivateUsage]
        key = encoded[:31] + bytes([encoded[31] | sign_bit])
        assert signing.is_weak_key(key)
        forged = signing.encode_bytes(bytes([1]) + bytes(63))
        assert not signing.is_signed_by(key, forged, b"anything")


def test_an_honest_key_does() -> None:
    private = Ed25519PrivateKey.generate()
    public = private.public_key().public_bytes_raw()
    assert not signing.is_weak_key(public)
    signature = signing.encode_bytes(private.sign(b"this"))
    assert signing.is_signed_by(public, signature, b"this")
    assert not signing.is_signed_by(public, signature, b"that")
    assert not signing.is_signed_by(public[:31], signature, b"this")
