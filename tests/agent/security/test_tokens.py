"""Tokens: made, read back, refused with one error, and shown to nobody."""

from __future__ import annotations

import hashlib
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.agent.security.tokens import (
    SECRET_BYTES,
    TOKEN_CHARACTERS,
    TOKEN_ID_BYTES,
    TOKEN_PATTERN,
    TokenError,
    hash_from_text,
    make_token,
    parse_token,
    same_hash,
    token_of_header,
)

IDS = st.binary(min_size=TOKEN_ID_BYTES, max_size=TOKEN_ID_BYTES)
SECRETS = st.binary(min_size=SECRET_BYTES, max_size=SECRET_BYTES)


@given(IDS, SECRETS)
def test_a_token_is_read_back_and_tells_its_id_alone(token_id: bytes, secret: bytes) -> None:
    """Its text has the form that scanners look for; its repr, str and format have no part of the secret."""
    token = make_token(token_id, secret)
    text = token.reveal()
    assert len(text) == TOKEN_CHARACTERS
    assert re.search(TOKEN_PATTERN, f"token={text}, and more")
    again = token_of_header(f"Bearer {text}")
    assert again.reveal() == text
    assert again.hash() == hashlib.sha256(text.encode()).digest()
    assert text.split("_")[1] == token.id
    for shown in (repr(token), str(token), f"{token}", repr([token]), repr({"t": token})):
        assert shown.count(token.id) == 1
        assert text.split("_")[2][:4] not in shown.replace(token.id, "")
        assert text.split("_")[2] not in shown


@given(IDS, SECRETS, st.integers(0, TOKEN_CHARACTERS - 1), st.characters())
def test_one_wrong_character_is_told(token_id: bytes, secret: bytes, place: int, character: str) -> None:
    """The check finds each of them, and the error repeats no part of the text."""
    text = make_token(token_id, secret).reveal()
    wrong = text[:place] + character + text[place + 1 :]
    if wrong == text:
        return
    with pytest.raises(TokenError) as error:
        parse_token(wrong)
    assert text.split("_")[2][:8] not in str(error.value)


@given(st.text())
@example("")
@example("shoal_")
@example("shoal_" + "a" * 8_192)
@example("shoal_\x00\r\n")
@example("shoal_aaaaaaaa_" + "a" * 52 + "_aaaaaaa")
@example("shoal_AAAAAAAA_" + "a" * 52 + "_aaaaaaa")
def test_any_other_text_is_refused_with_the_one_error(text: str) -> None:
    """So is any other header: two credentials, another scheme, none."""
    good = make_token(b"12345", b"s" * 32).reveal()
    with pytest.raises(TokenError):
        parse_token(text)
    for header in (
        text,
        f"Basic {good}",
        f"Bearer  {good}",
        f"Bearer {good}, Bearer {good}",
        f"Bearer{good}",
    ):
        with pytest.raises(TokenError):
            token_of_header(header)
    assert token_of_header(f"bearer {good}").reveal() == good  # the scheme's case does not matter: RFC 9110


def test_hashes_are_read_from_64_hex_digits() -> None:
    """As configurations have them."""
    token_hash = make_token(b"12345", b"s" * 32).hash()
    assert same_hash(hash_from_text(token_hash.hex()), token_hash)
    assert not same_hash(token_hash, bytes(32))
    for text in (
        "",
        "ab",
        token_hash.hex().upper(),
        token_hash.hex() + "0",
        "g" * 64,
        token_hash.hex() + "\n",
    ):
        with pytest.raises(TokenError):
            hash_from_text(text)
