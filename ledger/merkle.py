"""The Merkle tree of RFC 6962, section 2.1, over SHA-256: roots, proofs and their verification. Pure.

A leaf hash is SHA-256(0x00 || content) and comes from outside; an inner node is
SHA-256(0x01 || left || right); the root of the empty tree is SHA-256 of nothing. All hashes are 32
bytes. Where hashes come from is the caller's business: `Node` gives the root of the *complete*
subtree with 2**level leaves that begins at leaf index * 2**level.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Final

Node = Callable[[int, int], bytes]
EMPTY_ROOT: Final = hashlib.sha256(b"").digest()


def parent(left: bytes, right: bytes) -> bytes:
    """The hash of an inner node."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def fold(hashes: Sequence[bytes]) -> bytes:
    """The root over 2**k hashes of one level. Raises ValueError for any other number."""
    row = list(hashes)
    if not row or len(row) & (len(row) - 1):
        raise ValueError("a complete subtree has 1, 2, 4, 8, ... hashes")
    while len(row) > 1:
        row = [parent(row[i], row[i + 1]) for i in range(0, len(row), 2)]
    return row[0]


def node_of(leaves: Sequence[bytes]) -> Node:
    """A `Node` over leaf hashes that are all in memory."""
    return lambda level, index: fold(leaves[index << level : (index + 1) << level])


class Frontier:
    """A tree that only grows: the roots of its complete subtrees, largest first.

    Needs one hash for each binary digit of its size; `append` costs one or two hashes on average.
    """

    def __init__(self) -> None:
        self.size = 0
        self._roots: list[bytes] = []

    def append(self, leaf: bytes) -> None:
        """Add the next leaf hash."""
        digest, size = leaf, self.size
        while size & 1:
            digest = parent(self._roots.pop(), digest)
            size >>= 1
        self._roots.append(digest)
        self.size += 1

    def root(self) -> bytes:
        """The root of all that was appended."""
        return _join(self._roots)


def _join(roots: Sequence[bytes]) -> bytes:
    if not roots:
        return EMPTY_ROOT
    digest = roots[-1]
    for left in reversed(roots[:-1]):
        digest = parent(left, digest)
    return digest


def _range_root(begin: int, end: int, node: Node) -> bytes:
    """The root over the leaves from `begin` to `end`, a range that the tree's splits make."""
    roots: list[bytes] = []
    while begin < end:
        level = (end - begin).bit_length() - 1
        roots.append(node(level, begin >> level))
        begin += 1 << level
    return _join(roots)


def _split(size: int) -> int:
    """The largest power of two smaller than `size`, which is at least 2."""
    return 1 << ((size - 1).bit_length() - 1)


def root(size: int, node: Node) -> bytes:
    """The root of the first `size` leaves. Raises ValueError if `size` is negative."""
    if size < 0:
        raise ValueError("size must not be negative")
    return _range_root(0, size, node)


def inclusion_proof(index: int, size: int, node: Node) -> list[bytes]:
    """The audit path of leaf `index` (from 0) in the tree of `size` leaves, leaf's sibling first.

    Raises ValueError unless 0 <= index < size.
    """
    if not 0 <= index < size:
        raise ValueError("index must be from 0 to size - 1")
    begin, end, path = 0, size, list[bytes]()
    while end - begin > 1:
        middle = begin + _split(end - begin)
        if index < middle:
            path.append(_range_root(middle, end, node))
            end = middle
        else:
            path.append(_range_root(begin, middle, node))
            begin = middle
    return path[::-1]


def consistency_proof(old: int, new: int, node: Node) -> list[bytes]:
    """The proof that the tree of `old` leaves is the beginning of that of `new` leaves.

    Empty for old = 0 and old = new. Raises ValueError unless 0 <= old <= new.
    """
    if not 0 <= old <= new:
        raise ValueError("old must be from 0 to new")
    if old in (0, new):
        return []
    begin, end, path, is_whole = 0, new, list[bytes](), True
    while end != old:
        middle = begin + _split(end - begin)
        if old <= middle:
            path.append(_range_root(middle, end, node))
            end = middle
        else:
            path.append(_range_root(begin, middle, node))
            begin, is_whole = middle, False
    # The verifier knows the old root, so it is left out where it is a node of the new tree.
    if not is_whole:
        path.append(_range_root(begin, end, node))
    return path[::-1]


def inclusion_holds(leaf: bytes, index: int, size: int, path: Sequence[bytes], root_hash: bytes) -> bool:
    """Whether `path` proves the leaf at `index` in the tree with that root (RFC 9162, 2.1.3.2)."""
    if not 0 <= index < size:
        return False
    place, last, digest = index, size - 1, leaf
    for sibling in path:
        if last == 0:
            return False
        if place & 1 or place == last:
            digest = parent(sibling, digest)
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            digest = parent(digest, sibling)
        place, last = place >> 1, last >> 1
    return last == 0 and digest == root_hash


def consistency_holds(old: int, old_root: bytes, new: int, new_root: bytes, path: Sequence[bytes]) -> bool:
    """Whether `path` proves the old tree to be the beginning of the new one (RFC 9162, 2.1.4.2)."""
    if not 0 <= old <= new:
        return False
    if old == new:
        return not path and old_root == new_root
    if old == 0:
        return not path and old_root == EMPTY_ROOT
    hashes = list(path) if old & (old - 1) else [old_root, *path]
    if not hashes:
        return False
    place, last = old - 1, new - 1
    while place & 1:
        place, last = place >> 1, last >> 1
    first, second = hashes[0], hashes[0]
    for sibling in hashes[1:]:
        if last == 0:
            return False
        if place & 1 or place == last:
            first, second = parent(sibling, first), parent(sibling, second)
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            second = parent(second, sibling)
        place, last = place >> 1, last >> 1
    return last == 0 and first == old_root and second == new_root
