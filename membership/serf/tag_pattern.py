"""Regular expressions of tag filters: Go's syntax, searched for in a tag's value in bounded time.

Law of this file: pure; text in, yes or no out. An expression comes from the network, so Python's engine,
which backtracks, will not do: one packet could hang it. This is Thompson's construction (Programming
Techniques: Regular Expression Search Algorithm, 1968): all states at once, each character looked at once,
and both the program and the work bounded.

Understood: literals, `.`, classes with ranges and [:names:], \\d \\w \\s \\b and their opposites, \\A \\z ^
$, groups, alternation, * + ? {n,m} and their lazy forms, flags i s m U, \\Q...\\E. Unicode classes (\\p)
are not.
"""

import string
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

MAX_EXPRESSION_CHARACTERS = 512
MAX_NESTING = 32
MAX_REPEAT = 1000
"""Go's own limit for {n,m}."""

MAX_STATES = 2_000
"""Of one program. Go allows more; a tag filter that needs them is none."""

MAX_STEPS = 20_000
"""States looked at in one search: some 8 ms. Tags have 512 bytes at most; a usual filter takes a hundred."""

Ranges = tuple[tuple[str, str], ...]

_DIGIT: Ranges = (("0", "9"),)
_WORD: Ranges = (("0", "9"), ("A", "Z"), ("_", "_"), ("a", "z"))
_SPACE: Ranges = (("\t", "\n"), ("\f", "\r"), (" ", " "))
_PERL = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_POSIX: dict[str, Ranges] = {
    "alnum": (("0", "9"), ("A", "Z"), ("a", "z")),
    "alpha": (("A", "Z"), ("a", "z")),
    "ascii": (("\0", "\x7f"),),
    "blank": (("\t", "\t"), (" ", " ")),
    "cntrl": (("\0", "\x1f"), ("\x7f", "\x7f")),
    "digit": _DIGIT,
    "graph": (("!", "~"),),
    "lower": (("a", "z"),),
    "print": ((" ", "~"),),
    "punct": (("!", "/"), (":", "@"), ("[", "`"), ("{", "~")),
    "space": (("\t", "\r"), (" ", " ")),
    "upper": (("A", "Z"),),
    "word": _WORD,
    "xdigit": (("0", "9"), ("A", "F"), ("a", "f")),
}
_ESCAPED = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_NOTHING, _CHARACTER, _SPLIT, _ASSERT, _MATCH = range(5)


class PatternError(ValueError):
    """Not an expression that is understood here, or one that is too big."""


@dataclass(frozen=True, slots=True)
class Set:
    """Characters in any of the ranges, or in none; `fold` takes the other case of a letter as well."""

    ranges: Ranges
    negated: bool = False
    fold: bool = False

    def has(self, character: str) -> bool:
        found = self._within(character)
        if self.fold and not found:
            found = self._within(character.lower()) or self._within(character.upper())
        return found != self.negated

    def _within(self, character: str) -> bool:
        return any(low <= character <= high for low, high in self.ranges)


class State(NamedTuple):
    """One step: `to` comes next, `other` as well after a split."""

    kind: int
    to: int = -1
    other: int = -1
    characters: Set | None = None
    condition: str = ""


Build = Callable[[int], int]
"""Given the state to go on with, adds states and answers the first of them."""


def matches(expression: str, text: str) -> bool:
    """Whether the expression is found anywhere in the text. Raises PatternError."""
    states, first = _program(expression)
    current: set[int] = set()
    steps = 0
    for position in range(len(text) + 1):
        current = _closure(states, current | {first}, text, position)
        steps += len(current)
        if steps > MAX_STEPS:
            raise PatternError("too much work for a filter")
        if any(states[number].kind == _MATCH for number in current):
            return True
        if position < len(text):
            current = {
                states[number].to
                for number in current
                if (characters := states[number].characters) is not None and characters.has(text[position])
            }
    return False


def _closure(states: list[State], begun: set[int], text: str, position: int) -> set[int]:
    """All states that are reached without a character."""
    reached: set[int] = set()
    waiting = list(begun)
    while waiting:
        number = waiting.pop()
        if number in reached:
            continue
        reached.add(number)
        state = states[number]
        if state.kind in (_NOTHING, _SPLIT) or (
            state.kind == _ASSERT and _holds(state.condition, text, position)
        ):
            waiting.append(state.to)
            if state.kind == _SPLIT:
                waiting.append(state.other)
    return reached


def _holds(condition: str, text: str, position: int) -> bool:
    match condition:
        case "begin":
            return position == 0
        case "end":
            return position == len(text)
        case "line begin":
            return position == 0 or text[position - 1] == "\n"
        case "line end":
            return position == len(text) or text[position] == "\n"
    word = Set(_WORD)
    before = position > 0 and word.has(text[position - 1])
    after = position < len(text) and word.has(text[position])
    return (before != after) == (condition == "boundary")


@lru_cache(maxsize=64)
def _program(expression: str) -> tuple[list[State], int]:
    if len(expression) > MAX_EXPRESSION_CHARACTERS:
        raise PatternError(f"more than {MAX_EXPRESSION_CHARACTERS} characters")
    parser = _Parser(expression)
    build = parser.parse()
    parser.states.append(State(_MATCH))
    return parser.states, build(0)


class _Parser:
    """Recursive descent; what it gives are functions that lay states down from the end to the beginning."""

    def __init__(self, expression: str) -> None:
        self.states: list[State] = []
        self._text = expression
        self._at = 0
        self._depth = 0
        self._flags = frozenset[str]()

    def parse(self) -> Build:
        build = self._alternation()
        if self._at < len(self._text):
            raise PatternError("a closing parenthesis too many")
        return build

    def _add(self, state: State) -> int:
        if len(self.states) >= MAX_STATES:
            raise PatternError(f"more than {MAX_STATES} states")
        self.states.append(state)
        return len(self.states) - 1

    def _take(self, text: str) -> bool:
        if self._text.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise PatternError("ends too early")
        self._at += 1
        return self._text[self._at - 1]

    # Structure

    def _alternation(self) -> Build:
        branches = [self._sequence()]
        while self._take("|"):
            branches.append(self._sequence())

        def build(to: int) -> int:
            first = branches[-1](to)
            for branch in reversed(branches[:-1]):
                first = self._add(State(_SPLIT, branch(to), first))
            return first

        return build

    def _sequence(self) -> Build:
        parts: list[Build] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            parts.append(self._repeated(self._atom()))

        def build(to: int) -> int:
            for part in reversed(parts):
                to = part(to)
            return to

        return build

    def _repeated(self, part: Build) -> Build:
        bounds = self._bounds()
        if bounds is None:
            return part
        self._take("?")  # lazy: another match, but the same answer
        if self._bounds() is not None:
            raise PatternError("a repetition of a repetition")
        low, high = bounds

        def build(to: int) -> int:
            if high is None:
                loop = self._add(State(_SPLIT))
                self.states[loop] = State(_SPLIT, part(loop), to)
                to = loop
            for _ in range(0 if high is None else high - low):
                to = self._add(State(_SPLIT, part(to), to))
            for _ in range(low):
                to = part(to)
            return to

        return build

    def _bounds(self) -> tuple[int, int | None] | None:
        for mark, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(mark):
                return bounds
        end = self._text.find("}", self._at)
        if self._text[self._at : self._at + 1] != "{" or end < 0:
            return None
        low, comma, high = self._text[self._at + 1 : end].partition(",")
        if not _is_number(low) or (high and not _is_number(high)):
            return None  # a brace that is only a brace
        self._at = end + 1
        most = int(low) if not comma else int(high) if high else None
        if int(low) > MAX_REPEAT or (most is not None and not int(low) <= most <= MAX_REPEAT):
            raise PatternError("a repetition out of bounds")
        return int(low), most

    # Atoms

    def _atom(self) -> Build:
        character = self._next()
        match character:
            case "(":
                return self._group()
            case "[":
                return self._one(self._class())
            case ".":
                newline: Ranges = () if "s" in self._flags else (("\n", "\n"),)
                return self._one(Set(newline, negated=True))
            case "^":
                return self._assertion("line begin" if "m" in self._flags else "begin")
            case "$":
                return self._assertion("line end" if "m" in self._flags else "end")
            case "\\":
                return self._escape()
            case "*" | "+" | "?":
                raise PatternError("a repetition of nothing")
        return self._literal(character)

    def _one(self, characters: Set) -> Build:
        return lambda to: self._add(State(_CHARACTER, to, characters=characters))

    def _literal(self, character: str) -> Build:
        return self._one(Set(((character, character),), fold="i" in self._flags))

    def _assertion(self, condition: str) -> Build:
        return lambda to: self._add(State(_ASSERT, to, condition=condition))

    def _group(self) -> Build:
        outer = self._flags
        if self._take("?"):
            if self._take("P<") or self._take("<"):
                name = self._text[self._at : self._text.find(">", self._at)]
                if not name or not all(Set(_WORD).has(character) for character in name):
                    raise PatternError("a group without a proper name")
                self._at += len(name) + 1
            elif self._take_flags():
                return lambda to: self._add(State(_NOTHING, to))
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise PatternError(f"nested deeper than {MAX_NESTING}")
        inner = self._alternation()
        if not self._take(")"):
            raise PatternError("a parenthesis that is never closed")
        self._depth -= 1
        self._flags = outer
        return inner

    def _take_flags(self) -> bool:
        """After `(?`: True when they hold for the rest of the group, False when a group of theirs follows."""
        on = True
        flags = set(self._flags)
        while (character := self._next()) not in ":)":
            if character == "-" and on:
                on = False
            elif character in "imsU":
                (flags.add if on else flags.discard)(character)
            else:
                raise PatternError("an unknown flag")
        self._flags = frozenset(flags)
        return character == ")"

    def _escape(self) -> Build:
        if self._take("Q"):
            end = self._text.find("\\E", self._at)
            quoted = self._text[self._at : end if end >= 0 else len(self._text)]
            self._at += len(quoted) + (2 if end >= 0 else 0)
            parts = [self._literal(character) for character in quoted]

            def build(to: int) -> int:
                for part in reversed(parts):
                    to = part(to)
                return to

            return build
        for mark, condition in (("A", "begin"), ("z", "end"), ("b", "boundary"), ("B", "no boundary")):
            if self._take(mark):
                return self._assertion(condition)
        perl = self._perl()
        return self._one(perl) if perl is not None else self._literal(self._escaped())

    def _perl(self) -> Set | None:
        """After a backslash: \\d and its like, or nothing taken."""
        mark = self._text[self._at : self._at + 1]
        ranges = _PERL.get(mark.lower())
        if not mark or ranges is None:
            return None
        self._at += 1
        return Set(ranges, negated=mark.isupper())

    def _escaped(self) -> str:
        """After a backslash: the one character meant."""
        character = self._next()
        if character in _ESCAPED:
            return _ESCAPED[character]
        if character == "x":
            if self._take("{"):
                digits = self._text[self._at : self._text.find("}", self._at)]
                self._at += len(digits) + 1
            else:
                digits = self._next() + self._next()
            if not 1 <= len(digits) <= 6 or not set(digits) <= set(string.hexdigits):
                raise PatternError("a character that is no number")
            if int(digits, 16) > 0x10FFFF:
                raise PatternError("a character beyond the last")
            return chr(int(digits, 16))
        if character not in string.punctuation:
            raise PatternError(f"\\{character} is not understood")
        return character

    def _class(self) -> Set:
        negated = self._take("^")
        sets: list[Set] = []
        first = True
        while first or not self._take("]"):
            first = False
            if self._text.startswith("[:", self._at):
                sets.append(self._posix())
                continue
            low: str | Set = self._class_member()
            if isinstance(low, Set):
                sets.append(low)
                continue
            high = low
            if self._text.startswith("-", self._at) and self._text[self._at + 1 : self._at + 2] != "]":
                self._at += 1
                end = self._class_member()
                if isinstance(end, Set) or end < low:
                    raise PatternError("a range the wrong way round")
                high = end
            sets.append(Set(((low, high),)))
        return Set(_united(sets), negated, fold="i" in self._flags)

    def _class_member(self) -> str | Set:
        character = self._next()
        if character != "\\":
            return character
        perl = self._perl()
        return perl if perl is not None else self._escaped()

    def _posix(self) -> Set:
        end = self._text.find(":]", self._at)
        name = self._text[self._at + 2 : end] if end >= 0 else ""
        negated = name.startswith("^")
        ranges = _POSIX.get(name.removeprefix("^"))
        if ranges is None:
            raise PatternError("an unknown class")
        self._at = end + 2
        return Set(ranges, negated)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 4


def _united(sets: list[Set]) -> Ranges:
    """One set of ranges for many; the negated ones are turned round."""
    ranges: list[tuple[str, str]] = []
    for one in sets:
        ranges += _opposite(one.ranges) if one.negated else one.ranges
    return tuple(ranges)


def _opposite(ranges: Ranges) -> Ranges:
    opposite, begin = [], 0
    for low, high in sorted(ranges):
        if ord(low) > begin:
            opposite.append((chr(begin), chr(ord(low) - 1)))
        begin = max(begin, ord(high) + 1)
    return (*opposite, (chr(begin), chr(0x10FFFF)))
