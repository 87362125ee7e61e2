"""The configuration's sources: a fault of the file is named with file, line and key."""

from __future__ import annotations

import os
import pathlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from shoal.agent.config import ConfigError
from shoal.agent.process.config_source import (
    FILE_BYTES_MAX,
    ConfigFile,
    ConfigFileError,
    ConfigSource,
    read_file,
)


def source(tmp_path: pathlib.Path, text: str, **flags: object) -> ConfigSource:
    path = tmp_path / "shoal.toml"
    path.write_text(text)
    return ConfigSource({"data": "d"} | flags, {"SHOAL_WEIGHT": "7"}, str(path))


def fault(tmp_path: pathlib.Path, text: str, **flags: object) -> str:
    """What is said of it, without the directory."""
    with pytest.raises(ConfigError) as caught:
        source(tmp_path, text, **flags).read()
    said = str(caught.value)
    assert "\n" not in said
    return said.replace(f"{tmp_path}/", "")


def test_the_file_is_read_anew_each_time(tmp_path: pathlib.Path) -> None:
    """Flags and variables stay above it."""
    given = source(tmp_path, "log_level = 'debug'\nweight = 5\nname = 'cod'", name="herring")
    config = given.read()
    assert (config.log.log_level, config.weight, config.name) == ("debug", 7, "herring")
    pathlib.Path(given.path).write_text("log_level = 'error'")
    assert given.read().log.log_level == "error"
    assert [given.is_fixed(name) for name in ("name", "weight", "log_level")] == [
        "--name",
        "SHOAL_WEIGHT",
        None,
    ]


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("\nlog_level = 'loud'\n", "shoal.toml, line 2, key log_level: ", "use one of debug"),
        ("[agent]\nlog-level = 'loud'\n", "shoal.toml, line 2, key log-level: ", "use one of debug"),
        ("agent.log_level = 'loud'\n", "shoal.toml, line 1, key log_level: ", "use one of debug"),
        ("'expect' = 'many'\n", "shoal.toml, line 1, key expect: ", "a whole number"),
        ("# one\nreplace_after = '9d'", "shoal.toml, line 2, key replace_after: ", "at most 7 days"),
        ("bind = '10.0.0.5'\nadvertise = '0.0.0.0'", "shoal.toml, line 2, key advertise: ", "no address"),
        ("colour = 'red'", "shoal.toml, line 1, key colour: ", "is no setting"),
        ("[client]\nname = 'a'\n[agent]\nname = 'b/'\n", "shoal.toml, line 4, key name: ", "'b/'"),
        ("agent = 3", "shoal.toml, line 1, key agent: ", "not a table"),
        ("weight = 3\n[agent]\nname = 'b'\n", "shoal.toml, line 1, key weight: ", "outside of [agent]"),
        ("name = 'a'\n[agent]\nname = 'b'\n", "shoal.toml, line 1, key name: ", "outside of [agent]"),
        ("name = 'a'\nagent.name = 'b'\n", "shoal.toml, line 1, key name: ", "outside of [agent]"),
        (
            "log-level = 'info'\nlog_level = 'debug'\n",
            "shoal.toml, line 1, key log-level; shoal.toml, line 2, key log_level: ",
            "keep one",
        ),
        ("join = ['a:1']\nlog_level = ", "shoal.toml, line 2, key log_level is not TOML", "at end"),
        ("log_level 'debug'\njoin = []", "shoal.toml, line 1, key log_level is not TOML", "column 11"),
    ],
)
def test_a_fault_of_the_file_names_file_line_and_key(
    tmp_path: pathlib.Path, text: str, place: str, words: str
) -> None:
    """Whoever edits it finds the place."""
    said = fault(tmp_path, text)
    assert said.startswith(place), said
    assert words in said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"weight = {'[' * 20_000}", "nested too deep"),
        (f"weight = {'7' * 5_000}", "4300"),
    ],
)
def test_a_file_that_the_parser_gives_up_on_is_an_error_of_the_file(
    tmp_path: pathlib.Path, text: str, words: str
) -> None:
    """Python's parser raises other errors for these: nesting beyond its stack, numbers of thousands of
    digits."""
    said = fault(tmp_path, text)
    assert said.startswith("shoal.toml"), said
    assert " is not TOML: " in said
    assert words in said


def test_both_keys_of_a_rule_between_two_are_named(tmp_path: pathlib.Path) -> None:
    """Either may be the wrong one."""
    said = fault(tmp_path, "http_port = 7070\ngossip_port = 7070\n")
    places = "shoal.toml, line 1, key http_port; shoal.toml, line 2, key gossip_port: "
    assert said.startswith(places)


def test_words_of_advice_blame_no_other_key(tmp_path: pathlib.Path) -> None:
    """A name is spoken of, and the file has a key `name` too, which is as it should be."""
    said = fault(tmp_path, "name = 'cod'\ncluster = 'two words'\n")
    assert said.startswith("shoal.toml, line 2, key cluster: ")


def test_a_file_that_is_too_long_is_no_configuration(tmp_path: pathlib.Path) -> None:
    """It is not cut off, which might change its meaning."""
    assert "more than" in fault(tmp_path, "#" * (FILE_BYTES_MAX + 1))


def test_a_fault_of_a_flag_does_not_blame_the_file(tmp_path: pathlib.Path) -> None:
    """What a flag overrides counts for nothing."""
    said = fault(tmp_path, "log_level = 'info'", log_level="loud")
    assert "shoal.toml" not in said
    assert "loud" in said


@pytest.mark.parametrize(("content", "words"), [(b"\xff", "not UTF-8 at byte 0"), (None, "No such file")])
def test_a_file_that_cannot_be_read(tmp_path: pathlib.Path, content: bytes | None, words: str) -> None:
    """One line, with its name."""
    path = tmp_path / "shoal.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigFileError, match=words) as caught:
        read_file(str(path))
    assert str(path) in str(caught.value)


def test_a_pipe_is_not_waited_for_when_it_is_read_again(tmp_path: pathlib.Path) -> None:
    """Nobody may write to it any more: all later reloads, and the end of the process, would wait too."""
    given = source(tmp_path, "log_level = 'debug'")
    pathlib.Path(given.path).unlink()
    os.mkfifo(given.path)
    with pytest.raises(ConfigFileError, match=r"shoal\.toml is no regular file"):
        given.read()


def test_a_pipe_is_read_to_its_end_at_the_start(tmp_path: pathlib.Path) -> None:
    """As a shell gives one by `<(...)`, its writer gone already; or a named one, in pieces."""
    reader, writer = os.pipe()
    os.write(writer, b"weight = 5")
    os.close(writer)
    assert read_file(f"/dev/fd/{reader}").settings == {"weight": 5}
    os.close(reader)

    path = tmp_path / "shoal.toml"
    os.mkfifo(path)

    def write() -> None:
        with open(path, "wb", buffering=0) as file:
            file.writelines((b"weight ", b"= 6"))

    with ThreadPoolExecutor(1) as others:
        written = others.submit(write)
        assert read_file(str(path)).settings == {"weight": 6}
        written.result()


@pytest.mark.parametrize("is_opened", [False, True])
def test_a_pipe_that_nobody_ends_keeps_no_start_waiting(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, is_opened: bool
) -> None:
    """No writer came, or one that neither goes on nor ends."""
    monkeypatch.setattr("shoal.agent.process.config_source.PIPE_SECONDS_MAX", 0.05)
    path = tmp_path / "shoal.toml"
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR) if is_opened else None
    if writer is not None:
        os.write(writer, b"weight = 5")
    with pytest.raises(ConfigFileError, match="is a pipe that nobody wrote to the end"):
        read_file(str(path))
    if writer is not None:
        os.close(writer)


def test_a_key_that_stands_nowhere_has_no_line() -> None:
    """Such as one of a table that is written in braces."""
    file = ConfigFile("f", "agent = {log_level = 'x'}", {})
    assert file.line_of("log_level") is None
    assert file.place("log_level") == "f, key log_level"
