"""xxh3-64 in plain Python: for Spark's executors, where the package `xxhash` may be missing.

Pure. Written after xxHash's specification (doc/xxhash_spec.md, XXH3, seed 0, default secret). A key costs
some microseconds, so it is used only where there is nothing better; both give a key the same partition.
"""

from __future__ import annotations

from typing import Final

_MASK32: Final = 2**32 - 1
_MASK64: Final = 2**64 - 1
_PRIME32_1: Final = 0x9E3779B1
_PRIME32_2: Final = 0x85EBCA77
_PRIME32_3: Final = 0xC2B2AE3D
_PRIME64_1: Final = 0x9E3779B185EBCA87
_PRIME64_2: Final = 0xC2B2AE3D27D4EB4F
_PRIME64_3: Final = 0x165667B19E3779F9
_PRIME64_4: Final = 0x85EBCA77C2B2AE63
_PRIME64_5: Final = 0x27D4EB2F165667C5
_PRIME_MX1: Final = 0x165667919E3779F9
_PRIME_MX2: Final = 0x9FB21C651E98DF25
_SECRET: Final = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
    "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
    "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
    "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
    "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_STRIPE: Final = 64
_BLOCK_STRIPES: Final = (192 - _STRIPE) // 8


def xxh3_64_intdigest(data: bytes) -> int:
    """The digest as a number below 2**64."""
    length = len(data)
    if length <= 16:
        return _up_to_16(data, length)
    if length <= 128:
        return _up_to_128(data, length)
    if length <= 240:
        return _up_to_240(data, length)
    return _long(data, length)


def _read32(data: bytes, position: int) -> int:
    return int.from_bytes(data[position : position + 4], "little")


def _read64(data: bytes, position: int) -> int:
    return int.from_bytes(data[position : position + 8], "little")


def _secret(position: int) -> int:
    return _read64(_SECRET, position)


def _fold(first: int, second: int) -> int:
    product = first * second
    return (product & _MASK64) ^ (product >> 64)


def _avalanche(digest: int) -> int:
    digest ^= digest >> 37
    digest = digest * _PRIME_MX1 & _MASK64
    return digest ^ (digest >> 32)


def _avalanche_64(digest: int) -> int:
    digest ^= digest >> 33
    digest = digest * _PRIME64_2 & _MASK64
    digest ^= digest >> 29
    digest = digest * _PRIME64_3 & _MASK64
    return digest ^ (digest >> 32)


def _rotate(number: int, bits: int) -> int:
    return (number << bits | number >> (64 - bits)) & _MASK64


def _up_to_16(data: bytes, length: int) -> int:
    if length > 8:
        low = _read64(data, 0) ^ _secret(24) ^ _secret(32)
        high = _read64(data, length - 8) ^ _secret(40) ^ _secret(48)
        swapped = int.from_bytes(low.to_bytes(8, "little"), "big")
        return _avalanche((length + swapped + high + _fold(low, high)) & _MASK64)
    if length >= 4:
        keyed = (_read32(data, length - 4) + (_read32(data, 0) << 32)) ^ _secret(8) ^ _secret(16)
        keyed ^= _rotate(keyed, 49) ^ _rotate(keyed, 24)
        keyed = keyed * _PRIME_MX2 & _MASK64
        keyed ^= (keyed >> 35) + length
        keyed = keyed * _PRIME_MX2 & _MASK64
        return keyed ^ (keyed >> 28)
    if length:
        combined = data[0] << 16 | data[length >> 1] << 24 | data[length - 1] | length << 8
        return _avalanche_64(combined ^ _read32(_SECRET, 0) ^ _read32(_SECRET, 4))
    return _avalanche_64(_secret(56) ^ _secret(64))


def _mix(data: bytes, position: int, secret: int) -> int:
    return _fold(_read64(data, position) ^ _secret(secret), _read64(data, position + 8) ^ _secret(secret + 8))


def _up_to_128(data: bytes, length: int) -> int:
    digest = length * _PRIME64_1
    for number in range((length - 1) // 32, -1, -1):
        digest += _mix(data, 16 * number, 32 * number)
        digest += _mix(data, length - 16 * (number + 1), 32 * number + 16)
    return _avalanche(digest & _MASK64)


def _up_to_240(data: bytes, length: int) -> int:
    digest = length * _PRIME64_1
    for number in range(8):
        digest += _mix(data, 16 * number, 16 * number)
    digest = _avalanche(digest & _MASK64)
    for number in range(8, length // 16):
        digest += _mix(data, 16 * number, 16 * (number - 8) + 3)
    digest += _mix(data, length - 16, 136 - 17)
    return _avalanche(digest & _MASK64)


def _accumulate(lanes: list[int], data: bytes, position: int, secret: int) -> None:
    for lane in range(8):
        word = _read64(data, position + 8 * lane)
        keyed = word ^ _secret(secret + 8 * lane)
        lanes[lane ^ 1] = (lanes[lane ^ 1] + word) & _MASK64
        lanes[lane] = (lanes[lane] + (keyed & _MASK32) * (keyed >> 32)) & _MASK64


def _long(data: bytes, length: int) -> int:
    lanes = [
        _PRIME32_3, _PRIME64_1, _PRIME64_2, _PRIME64_3, _PRIME64_4, _PRIME32_2, _PRIME64_5, _PRIME32_1
    ]  # fmt: skip
    stripes = (length - 1) // _STRIPE
    for stripe in range(stripes):
        place = stripe % _BLOCK_STRIPES
        _accumulate(lanes, data, stripe * _STRIPE, 8 * place)
        if place == _BLOCK_STRIPES - 1:
            for lane in range(8):
                mixed = lanes[lane] ^ (lanes[lane] >> 47) ^ _secret(192 - _STRIPE + 8 * lane)
                lanes[lane] = mixed * _PRIME32_1 & _MASK64
    _accumulate(lanes, data, length - _STRIPE, 192 - _STRIPE - 7)
    digest = length * _PRIME64_1
    for pair in range(4):
        first, second = (
            lanes[2 * pair] ^ _secret(11 + 16 * pair),
            lanes[2 * pair + 1] ^ _secret(19 + 16 * pair),
        )
        digest += _fold(first, second)
    return _avalanche(digest & _MASK64)
