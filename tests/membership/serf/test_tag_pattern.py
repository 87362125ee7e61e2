"""Tag filters: the same answers as a backtracking engine where both understand, and never its disasters."""

import contextlib
import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.membership.serf.tag_pattern import MAX_EXPRESSION_CHARACTERS, PatternError, matches
from tests.membership.work import lines_at_most


@pytest.mark.parametrize(
    ("expression", "text", "found"),
    [
        ("", "", True),
        ("", "web", True),
        ("web.*", "my-web-1", True),
        ("^web", "my-web-1", False),
        ("^web$", "web\n", False),
        ("(?m)^web$", "db\nweb\n", True),
        ("web|db", "adb", True),
        ("^(?:web|db)-[0-9]{2,3}$", "db-123", True),
        ("^(?:web|db)-[0-9]{2,3}$", "db-1234", False),
        ("(?i)WEB", "web", True),
        ("(?i:W)EB", "wEB", True),
        ("(?i:W)EB", "web", False),
        ("(?P<role>w.b)", "wab", True),
        ("a.b", "a\nb", False),
        ("(?s)a.b", "a\nb", True),
        (r"\bweb\b", "a web b", True),
        (r"\bweb\b", "aweb", False),
        (r"\Bweb", "aweb", True),
        (r"\Q1.2*\E3", "1.2*3", True),
        (r"\Q1.2", "1x2", False),
        (r"[[:alpha:]_]+[^[:digit:]]$", "ab_c-", True),
        (r"[\d.-]+$", "v1.2-3", True),
        (r"[^\D5]", "5", False),
        (r"[]a]", "]", True),
        (r"\x41\x{42}", "AB", True),
        ("a{,2}", "a{,2}", True),
        ("(a*)*b", "aaab", True),
        ("(|a)+b", "b", True),
        ("x??y+?", "y", True),
        ("ä[ö-ü]", "äö", True),
    ],
)
def test_gos_syntax(expression: str, text: str, found: bool) -> None:
    """A table of what RE2 says."""
    assert matches(expression, text) is found


@pytest.mark.parametrize(
    "expression",
    [
        "(", ")", "a)", "[", "[a", "[]", "[b-a]", "[a-\\d]", "*", "a**", "a{2}{3}", "a{1001}", "a{3,2}", "\\",
        "\\p{L}", "(?z)", "(?P<>a)", "(?P<a", "(?", "[[:none:]]", "\\xg1", "\\x{110000}", "\\x{}", "a" * 513,
        "(" * 40 + ")" * 40, "((a{100}){100}){100}", "(a{1000}){1000}",
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused(expression: str) -> None:
    """With the one error, and soon."""
    with lines_at_most(50_000), pytest.raises(PatternError):
        matches(expression, "a" * 400)


@pytest.mark.parametrize("expression", ["(a+)+$", "(a|a)*b", "(a|aa)+$", "(.*)*x", "a?" * 100 + "a" * 100])
def test_what_hangs_other_engines_takes_no_time(expression: str) -> None:
    """Either an answer or a refusal, with bounded work: a few milliseconds."""
    with lines_at_most(500_000), contextlib.suppress(PatternError):
        matches(expression, "a" * 500 + "!")


ATOMS = [
    "a",
    "b",
    "-",
    ".",
    "[ab]",
    "[^a]",
    "[a-b-]",
    r"\w",
    r"\W",
    r"\d",
    r"\b",
    "(a|b)",
    "(?:ab)",
    "^",
    "()",
]
REPEATS = ["", "", "", "*", "+", "?", "{2}", "{1,2}", "{0,}", "*?"]


def test_random_expressions_agree_with_the_library() -> None:
    """Four thousand of them, over the syntax that both share (`$` differs: Go's is the very end)."""
    rng = random.Random(4)

    def expression() -> str:
        parts = []
        for _ in range(rng.randrange(1, 5)):
            atom = rng.choice(ATOMS)
            assertion = atom in ("^", r"\b")
            parts.append(atom + ("" if assertion else rng.choice(REPEATS)))
        return ("|" if rng.random() < 0.2 else "").join(parts) + (r"\z" if rng.random() < 0.2 else "")

    for _ in range(4_000):
        pattern = expression()
        text = "".join(rng.choices("ab-1", k=rng.randrange(6)))
        expected = re.search(pattern.replace(r"\z", r"\Z"), text, re.ASCII) is not None
        assert matches(pattern, text) is expected, (pattern, text)


@given(
    st.text(alphabet="ab()[]{}|*+?\\^$-,1dwQEx:P<>i", max_size=24), st.text(alphabet="ab-1\n", max_size=12)
)
@settings(max_examples=500, deadline=None, derandomize=True)
def test_any_text_is_an_expression_or_is_refused(expression: str, text: str) -> None:
    """No other exception."""
    try:
        matches(expression, text)
    except PatternError:
        return


def test_length_is_bounded() -> None:
    """To the character."""
    assert matches("^" + "a" * (MAX_EXPRESSION_CHARACTERS - 1), "a" * MAX_EXPRESSION_CHARACTERS)
    with pytest.raises(PatternError):
        matches("a" * (MAX_EXPRESSION_CHARACTERS + 1), "a")
