"""What is too large or stands twice, in numbers that may only fall.

Each number is that of the day on which it was last lowered. Lower it with the change that makes it smaller; a
change that would raise one needs another form.
"""

from __future__ import annotations

import ast
import functools
import re
import tokenize
from collections import Counter
from collections.abc import Iterator

from rooms import ROOT, product_files

ATTRIBUTES_MAX = 25
PARAMETERS_MAX = 8
LINES_MAX = 500
HELPER_LINES_MIN = 6

LARGE_CLASSES: dict[str, int] = {
    "agent/config.py:AgentConfig": 31,
    "agent/http/admission/limits.py:HttpLimits": 29,
    "membership/config.py:GossipConfig": 31,
}
LONG_CONSTRUCTORS: dict[str, int] = {
    "agent/members/contact.py:PoolContact": 9,
}
LONG_FILES: dict[str, int] = {
    "agent/host/host.py": 547,
    "agent/partition/replica.py": 620,
    "replication/roles/leader.py": 526,
    "segment_store/log/log.py": 610,
    "segment_store/log/writer.py": 508,
    "shoal/client/consume/consumer.py": 529,
    "shoal/client/produce/producer.py": 645,
}
DOUBLE_CLASS_NAMES = 38
SHORT_HELPERS = 156
WORDS_MAX = 25
LONG_SENTENCES = 322
SENTENCES_WITH_WHAT = 86
FOREIGN_PRIVATES: dict[str, int] = {}
"""Private attributes of other packages' classes: in these files and nowhere else."""


@functools.cache
def trees() -> dict[str, ast.Module]:
    """Each file of the product."""
    return {str(path): ast.parse((ROOT / path).read_text()) for path in product_files()}


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                yield f"{path}:{node.name}", node


def attributes(node: ast.ClassDef) -> set[str]:
    """What its methods assign to `self`, and its fields."""
    assigned = {
        item.attr
        for item in ast.walk(node)
        if isinstance(item, ast.Attribute)
        and isinstance(item.ctx, ast.Store)
        and isinstance(item.value, ast.Name)
        and item.value.id == "self"
    }
    fields = {
        item.target.id
        for item in node.body
        if isinstance(item, ast.AnnAssign)
        and isinstance(item.target, ast.Name)
        and "ClassVar" not in ast.unparse(item.annotation)
    }
    return assigned | fields


def parameters(node: ast.ClassDef) -> int:
    """Of its `__init__`, without `self`. A dataclass counts by its attributes."""
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            arguments = item.args
            return len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs) - 1
    return 0


def raised(found: dict[str, int], allowed: dict[str, int]) -> dict[str, int]:
    """Those above their number."""
    return {name: number for name, number in found.items() if number > allowed.get(name, 0)}


def large_classes() -> dict[str, int]:
    found = {name: len(attributes(node)) for name, node in classes()}
    return {name: number for name, number in found.items() if number > ATTRIBUTES_MAX}


def long_constructors() -> dict[str, int]:
    found = {name: parameters(node) for name, node in classes()}
    return {name: number for name, number in found.items() if number > PARAMETERS_MAX}


def long_files() -> dict[str, int]:
    found = {str(path): (ROOT / path).read_text().count("\n") for path in product_files()}
    return {name: number for name, number in found.items() if number > LINES_MAX}


def double_class_names() -> list[str]:
    """Public ones, at the top of a file."""
    count = Counter(
        node.name
        for tree in trees().values()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return sorted(name for name, number in count.items() if number > 1)


def short_helpers() -> list[str]:
    """Private functions and methods that stand for under six lines and are named once in their file."""
    found = []
    for path, tree in trees().items():
        words = Counter(re.findall(r"\b_[a-z]\w*", (ROOT / path).read_text()))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.decorator_list:
                start = node.body[1 if ast.get_docstring(node) and len(node.body) > 1 else 0].lineno
                lines = (node.end_lineno or start) - start + 1
                private = node.name.startswith("_") and not node.name.startswith("__")
                if private and lines < HELPER_LINES_MIN and words[node.name] == 2:
                    found.append(f"{path}:{node.name}")
    return found


def foreign_privates() -> dict[str, int]:
    """How often each file uses a private name that no file of ours defines."""
    own = set()
    for tree in trees().values():
        for node in ast.walk(tree):
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    own.add(node.name)
                case ast.Attribute(ctx=ast.Store()):
                    own.add(node.attr)
                case ast.Name(ctx=ast.Store()):
                    own.add(node.id)
    # A named tuple's public methods begin so, too.
    own |= {"_replace", "_asdict", "_make", "_fields"}
    return dict(
        Counter(
            path
            for path, tree in trees().items()
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and re.match(r"_[a-z]", node.attr) and node.attr not in own
        )
    )


@functools.cache
def sentences() -> list[str]:
    """Of the docstrings and comments of the product."""
    texts: list[str] = []
    for path, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                texts.append(ast.get_docstring(node) or "")
        with (ROOT / path).open("rb") as file:
            block: list[str] = []
            for token in tokenize.tokenize(file.readline):
                if token.type == tokenize.COMMENT:
                    block.append(token.string.removeprefix("#"))
                elif token.type != tokenize.NL:
                    texts.append("\n".join(block))
                    block = []
    paragraphs = [" ".join(part.split()) for text in texts for part in re.split(r"\n\s*\n", text)]
    return [part for text in paragraphs for part in re.split(r"(?<=[.:?]) (?=[A-Z`])", text) if part]


def test_no_sentence_of_the_product_begins_with_who() -> None:
    """A sentence begins with a noun."""
    assert [text for text in sentences() if re.match(r"(Who|Whom|Whose|Whoever|Whatever)\b", text)] == []


def test_few_sentences_of_the_product_begin_with_what() -> None:
    """A noun says what it is about."""
    found = [text for text in sentences() if re.match(r"What\b", text)]
    assert len(found) <= SENTENCES_WITH_WHAT, found


def test_few_sentences_of_the_product_are_long() -> None:
    """One idea a sentence, in about 25 words."""
    found = [text for text in sentences() if len(text.split()) > WORDS_MAX]
    assert len(found) <= LONG_SENTENCES, found


def test_no_class_grows_beyond_25_attributes() -> None:
    """One that has more has more than one concern."""
    assert raised(large_classes(), LARGE_CLASSES) == {}


def test_no_constructor_grows_beyond_8_parameters() -> None:
    """Values that always travel together are one value."""
    assert raised(long_constructors(), LONG_CONSTRUCTORS) == {}


def test_no_file_grows_beyond_500_lines() -> None:
    """Those that are longer already may not grow."""
    assert raised(long_files(), LONG_FILES) == {}


def test_public_class_names_stand_once() -> None:
    """A name that stands twice is looked up twice."""
    found = double_class_names()
    assert len(found) <= DOUBLE_CLASS_NAMES, found


def test_helpers_are_worth_their_call() -> None:
    """A few lines with one caller are read sooner in its place."""
    found = short_helpers()
    assert len(found) <= SHORT_HELPERS, found


def test_private_attributes_of_other_packages_are_used_in_few_files() -> None:
    """They change without a word: each use is beside a test of the version that is installed."""
    assert raised(foreign_privates(), FOREIGN_PRIVATES) == {}
    assert len(FOREIGN_PRIVATES) == 0
