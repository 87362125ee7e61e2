"""Hostile texts, made of good ones by few changes, as a copy, a proxy or an attacker makes them."""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from typing import Final

CONTROLS: Final = [chr(code) for code in (*range(32), 127, 0x85, 0x9F, 0x2028)]
BLANKS: Final = (" ", "  ", "\t", "\u00a0", "\u2003", "\u200b", "\ufeff", ",", ";")
LOOKALIKES: Final = {
    "s": "\u017f\uff53\u0455", "k": "\u212a", "a": "\u0430\uff41", "e": "\u0435", "o": "\u043e\u03bf",
    "b": "\u042c",
    "2": "\u0662\uff12", "3": "\u0663", "_": "\uff3f", ".": "\u3002\uff0e", "-": "\u2010\u2212",
}  # fmt: skip
"""Some become the letter by lower(), casefold() or normalisation."""
BASE64URL: Final = string.ascii_uppercase + string.ascii_lowercase + string.digits + "-_"
LARGE_CHARACTERS: Final = 8_192
WINDOW, STRIDE = 14, 7
"""A run of a secret that is so long has been copied from it. Names of tokens have 8 characters."""


def _slice(rng: random.Random, text: str) -> tuple[int, int]:
    begin = rng.randrange(len(text) + 1)
    return begin, min(len(text), begin + rng.randrange(1, 40))


def _other_letter(rng: random.Random, text: str) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice(string.printable) + text[at + 1 :]


def _control(rng: random.Random, text: str) -> str:
    at = rng.choice((0, len(text), rng.randrange(len(text) + 1)))
    return text[:at] + rng.choice(CONTROLS) * rng.randrange(1, 3) + text[at:]


def _blank(rng: random.Random, text: str) -> str:
    at = rng.choice((0, len(text), rng.randrange(len(text) + 1)))
    return text[:at] + rng.choice(BLANKS) + text[at:]


def _without(rng: random.Random, text: str) -> str:
    begin, end = _slice(rng, text)
    return text[:begin] + text[end:]


def _cut(rng: random.Random, text: str) -> str:
    return text[: rng.randrange(len(text) + 1)]


def _twice(rng: random.Random, text: str) -> str:
    begin, end = _slice(rng, text)
    return text[:end] + text[begin:end] * rng.randrange(1, 3) + text[end:]


def _case(rng: random.Random, text: str) -> str:
    if rng.random() < 0.5:
        return rng.choice((text.upper(), text.lower(), text.swapcase()))
    at = rng.randrange(len(text) + 1)
    return text[:at] + text[at : at + 1].swapcase() + text[at + 1 :]


def _lookalike(rng: random.Random, text: str) -> str:
    places = [at for at, letter in enumerate(text) if letter.lower() in LOOKALIKES]
    if not places:
        return text
    at = rng.choice(places)
    return text[:at] + rng.choice(LOOKALIKES[text[at].lower()]) + text[at + 1 :]


def _padding(rng: random.Random, text: str) -> str:
    """At the end of a part, as encoders of base64 pad it, or in the wrong place."""
    ends = [at for at, letter in enumerate(text) if letter in "._"] + [len(text)]
    at = rng.choice(ends)
    return text[:at] + "=" * rng.randrange(1, 4) + text[at:]


def _other_alphabet(rng: random.Random, text: str) -> str:
    changes = rng.choice(({"-": "+", "_": "/"}, {"_": "%5F", ".": "%2E"}, {"2": "0", "3": "1"}, {"l": "1"}))
    return text.translate(str.maketrans(changes))


def _spare_bits(rng: random.Random, text: str) -> str:
    """The last letter of a part has bits that stand for nothing: another letter with the same others."""
    ends = [at - 1 for at, letter in enumerate(text) if letter == "."] + [len(text) - 1]
    at = rng.choice(ends)
    found = BASE64URL.find(text[at]) if at >= 0 else -1
    if found < 0:
        return text
    return text[:at] + BASE64URL[found ^ rng.randrange(1, 16)] + text[at + 1 :]


def _percent(rng: random.Random, text: str) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + "".join(f"%{ord(letter):02X}" for letter in text[at : at + 1]) + text[at + 1 :]


def _large(rng: random.Random, text: str) -> str:
    return (text + rng.choice(("A", text or "A", "=", ".", "\x00"))) * rng.randrange(2, 200)


CHANGES: Final[tuple[Callable[[random.Random, str], str], ...]] = (
    _other_letter, _control, _blank, _without, _cut, _twice, _case, _lookalike, _padding, _other_alphabet,
    _spare_bits, _percent, _other_letter, _spare_bits,
)  # fmt: skip


def changed(rng: random.Random, text: str) -> str:
    """One to three changes; now and then far too much of it."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        text = rng.choice(CHANGES)(rng, text)
    if rng.random() < 0.005:
        text = _large(rng, text)
    return text[: 2 * LARGE_CHARACTERS]


def repeats(answer: str, secret: str) -> bool:
    """Whether so long a run of it stands in an answer that it comes from there."""
    return (
        any(secret[at : at + WINDOW] in answer for at in range(0, max(1, len(secret) - WINDOW), STRIDE))
        and len(secret) >= WINDOW
    )
