"""The list of bad input that security has to refuse, item by item, each with the tests that show it.

A test of the list fails when the test that covers an item is gone, or has lost its case.
"""

from __future__ import annotations

import ast
import functools
import pathlib
import time
from typing import Final

import pytest
from jwt_issuer import NOW_MS, NOW_S, bad_jwts

from shoal.agent.security.judge import Judge
from shoal.agent.security.needs import Action, ResourceKind, need
from shoal.agent.security.principals import (
    PRINCIPALS_MAX,
    AskedBy,
    DeletePrincipal,
    MakeToken,
    PutPrincipal,
    Security,
)
from shoal.agent.security.rules import rules_from_texts
from shoal.agent.security.tokens import make_token
from tests.agent.credential_fuzz import front, heads

ROOT: Final = pathlib.Path(__file__).parents[3]
OF_TOKENS: Final = "tests/agent/test_tokens.py"
OF_PRINCIPALS: Final = "tests/agent/http/admin/test_principals.py"
DOORS: Final = "tests/agent/http/test_doors.py::test_each_operation_against_each_kind_of_credential"
JUDGED: Final = (
    "tests/agent/security/test_judge.py::test_a_token_is_its_principal_until_it_expires_or_is_revoked"
)
OF_JWTS: Final = "tests/agent/security/test_jwt.py"
JWTS: Final = f"{OF_JWTS}::test_a_bad_jwt_is_refused_with_one_error_that_repeats_nothing_of_it"
AT_THE_DOOR: Final = "tests/agent/security/test_bad_input.py::test_a_bad_jwt_at_the_door"
KEYS: Final = "tests/agent/issuer/test_key_source.py"
CONTEXTS: Final = "tests/agent/tls/test_contexts.py"
UNFIT: Final = f"{CONTEXTS}::test_certificates_that_no_agent_can_use"
LISTENER: Final = "tests/agent/tls/test_listener.py"
OF_JUDGE: Final = "tests/agent/security/test_judge.py"
CLOCK: Final = f"{OF_JUDGE}::test_a_clock_that_jumps_an_hour_either_way"
RULES: Final = "tests/agent/security/test_rules.py"
FUZZ: Final = (
    "tests/agent/credential_fuzz/test_credential_fuzz.py::"
    "test_each_hostile_credential_is_what_an_independent_reader_says"
)

LIST: Final[dict[str, list[tuple[str, str]]]] = {
    "no credential": [(DOORS, '"none": Kind((), 401')],
    "two credentials": [(DOORS, '"two": Kind(bearer("right", "right"), 401')],
    "a credential of 8 KiB": [
        (
            "tests/agent/http/test_doors_in_time.py::test_a_long_credential_is_refused_before_it_is_read",
            "8_192",
        ),
        (DOORS, '"of 5 KB": Kind(bearer("x" * 5_000), 401'),
    ],
    "a credential of control characters": [(DOORS, '"of control characters": Kind(bearer("ri\\tght"), 401')],
    "a credential of another cluster": [(JUDGED, "world.refused(bearer(STRANGE))"), (FUZZ, "run_round")],
    "an expired credential": [
        (JUDGED, "world.refused(bearer(BOBS), 5_000)"),
        (DOORS, '"expired": Kind(bearer("expired"), 401'),
    ],
    "a revoked credential": [
        (DOORS, '"revoked": Kind(bearer("revoked"), 401'),
        (f"{OF_TOKENS}::test_a_token_is_used_at_every_agent_and_revoked_at_every_agent_under_load", "revoke"),
    ],
    "a credential that is not valid yet": [(JWTS, "bad_jwts()"), (AT_THE_DOOR, '"not before an hour"')],
    "a JWT with alg none": [(JWTS, "bad_jwts()"), (AT_THE_DOOR, '"alg none"')],
    "a JWT with HS256 and the public key": [(AT_THE_DOOR, '"HS256 by the public key"')],
    "a JWT of another issuer or audience": [(AT_THE_DOOR, '"another issuer", "another audience"')],
    "a JWT without expiry": [(AT_THE_DOOR, '"no expiry"')],
    "a JWT with an expiry in a million years": [(AT_THE_DOOR, '"expires in a million years"')],
    "a JWT with a kid of ../../etc/passwd": [(AT_THE_DOOR, '"kid is a path"')],
    "a JWT with a jku": [(AT_THE_DOOR, '"jku"')],
    "a JWT with a thousand nested claims": [(AT_THE_DOOR, '"a thousand lists"')],
    "a key URL that redirects": [(f"{KEYS}::test_a_redirect_is_not_followed", "redirect")],
    "a key URL that answers 100 MiB": [(f"{KEYS}::test_an_answer_of_100_mib_is_cut_off", "100")],
    "a key URL that never answers": [(f"{KEYS}::test_an_issuer_that_never_answers_is_given_up", "issuer")],
    "a certificate that is self-signed": [
        (UNFIT, "by_itself=True"),
        (f"{LISTENER}::test_a_certificate_that_does_not_verify", "by_itself=True"),
    ],
    "a certificate that has expired": [
        (UNFIT, '"has expired"'),
        (f"{LISTENER}::test_a_certificate_that_does_not_verify", "days=(-3, -1)"),
    ],
    "a certificate of another authority": [
        (UNFIT, "OTHERS.issue(AGENT)"),
        (f"{LISTENER}::test_a_certificate_that_does_not_verify", "OTHERS"),
    ],
    "a certificate with two names": [(UNFIT, '"has more than one URI name"')],
    "a certificate with a name and a NUL": [(UNFIT, "\\0.example.org"), (FUZZ, "run_round")],
    "a key that is not the certificate's": [(UNFIT, '"do not belong together"')],
    "an empty file": [(f"{CONTEXTS}::test_files_that_hold_something_else", '"is empty"')],
    "a directory": [(f"{CONTEXTS}::test_paths_that_are_no_files", "tmp_path")],
    "a file that everybody may read": [(f"{CONTEXTS}::test_a_key_that_everybody_may_read", "0o644")],
    "TLS 1.0": [(f"{LISTENER}::test_old_versions", "ssl.TLSVersion.TLSv1,")],
    "plain HTTP to a TLS port": [(f"{LISTENER}::test_plain_http_on_a_port_of_tls", "plain")],
    "TLS to a plain port": [(f"{LISTENER}::test_tls_on_a_port_in_the_open", "this port speaks no TLS")],
    "a handshake that stops half way": [(f"{LISTENER}::test_a_handshake_that_stops_half_way", "HANDSHAKE_S")],
    "ten thousand half handshakes": [
        (f"{LISTENER}::test_half_open_handshakes_are_bounded", "HANDSHAKES_MAX"),
        (f"{LISTENER}::test_who_takes_all_places_costs_nobody_else_a_handshake", "HANDSHAKES_MAX"),
        (f"{LISTENER}::test_who_waits_for_places_keeps_nobody_else_waiting", "CROWDED"),
    ],
    "Shoal-Principal from a client": [
        (DOORS, '"only a principal": Kind((("Shoal-Principal", "of-right"),), 403')
    ],
    "Shoal-Forwarded-By from a client": [
        (DOORS, '"forwarded by a client": Kind((*bearer("right"), *forwarded()), 403')
    ],
    "the topic prefix *": [
        (f"{RULES}::test_a_topic_is_meant_by_its_name_or_a_prefix", '("*", ["orders", "order", "a"]')
    ],
    "an empty topic prefix": [(f"{RULES}::test_a_text_that_is_no_rule_is_refused", '"topic:=read"')],
    "the topic prefix a*b": [(f"{RULES}::test_a_text_that_is_no_rule_is_refused", '"topic:a*b=read"')],
    "orders* against orders and order": [
        (
            f"{RULES}::test_a_topic_is_meant_by_its_name_or_a_prefix",
            '("orders*", ["orders", "orders-eu", "orders.x"], ["order"',
        ),
        (DOORS, '"prefix of the whole name": Kind(bearer("whole"), 0'),
    ],
    "a role that contains itself": [
        (
            f"{OF_PRINCIPALS}::test_a_refusal_says_why_and_changes_nothing",
            '"roles/clerk", {"roles": ["clerk"]}',
        ),
        (f"{RULES}::test_a_text_that_is_no_rule_is_refused", '"role:x=admin"'),
    ],
    "the last administrator removed": [
        ("tests/agent/security/test_principals.py::test_the_last_administrator_stays", "last-administrator"),
        (f"{OF_PRINCIPALS}::test_a_refusal_says_why_and_changes_nothing", '"last-administrator"'),
    ],
    "10,001 principals": [
        ("tests/agent/security/test_bad_input.py::test_10001_principals", "PRINCIPALS_MAX + 1")
    ],
    "a cookie from another site": [
        (
            "tests/agent/http/test_doors.py::test_a_session_is_refused_from_another_page",
            '("Sec-Fetch-Site", "cross-site")',
        ),
        (DOORS, '"session among other cookies": Kind('),
    ],
    "a session after its end": [
        (
            "tests/agent/security/test_sessions.py::test_a_session_is_its_tokens_principal_for_half_a_day",
            '"has expired"',
        ),
        ("tests/agent/security/test_sessions.py::test_a_session_ends_with_its_token", '"ended": "was ended"'),
        ("tests/agent/test_sessions.py::test_a_session_is_taken_and_ended_at_every_agent", "def test_a"),
        (FUZZ, "run_round"),
    ],
    "a clock that jumps an hour either way": [
        (CLOCK, "HOUR_MS"),
        (f"{OF_JUDGE}::test_the_expired_does_not_come_alive_by_jumps_back_of_up_to_an_hour", "CLOCK_BACK"),
        (f"{OF_JWTS}::test_the_clock_may_be_wrong_by_an_hour_either_way", "HOUR_MS"),
        (f"{OF_JWTS}::test_an_expired_jwt_does_not_come_alive_when_the_clock_jumps_back", "CLOCK_BACK"),
    ],
}
"""The item; tests as path::name; and what stands in the file while the test has the case."""


@functools.cache
def functions(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("item", LIST)
def test_each_item_of_the_list_has_its_test(item: str) -> None:
    """Which is there, and has the case."""
    assert LIST[item]
    for test, case in LIST[item]:
        path, _, name = test.partition("::")
        assert name in functions(path), test
        assert case in (ROOT / path).read_text(), (test, case)


# ---- tests that stand nowhere else -------------------------------------------------------------------------

NAMED: Final = (
    "alg none", "HS256 by the public key", "another issuer", "another audience", "no expiry", "expired",
    "expires in a million years", "kid is a path", "jku", "a thousand lists", "not before an hour",
)  # fmt: skip


async def test_a_bad_jwt_at_the_door() -> None:
    """Each gets 401 at the front of an agent, on the fast path as on the ordinary one, and is not repeated; a
    good one is let in before and after."""
    bad = bad_jwts(NOW_S)
    assert bad.keys() >= set(NAMED)
    good = heads.signed(heads.claims(NOW_S, sub="bob"))
    append, describe = heads.TARGETS[0], heads.TARGETS[2]

    def case(text: str, target: heads.Target) -> heads.Case:
        end = f"Content-Length: {len(target.body)}\r\n\r\n" if target.body else "\r\n"
        head = f"{target.line} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {text}\r\n{end}"
        return heads.Case(target, head.encode(), None, [text])

    async with front.standing() as door:
        for text in (good, *bad.values(), good):
            for target in (append, describe):
                await door.ask(case(text, target))
        assert (door.served, door.refused) == (4, 2 * len(bad))


def test_10001_principals() -> None:
    """The last is refused by the fold itself, and costs no more than another; a deletion makes room. Each
    token is found at once all the same."""
    by = AskedBy("bootstrap", "token", "127.0.0.1", NOW_MS, "r")
    state = Security()
    tokens = [make_token(number.to_bytes(5), number.to_bytes(32)) for number in range(PRINCIPALS_MAX + 1)]
    rules = rules_from_texts(("topic:orders*=read",))
    for number, token in enumerate(tokens[:-1]):
        name = f"p{number}"
        assert state.apply(PutPrincipal(name, None, (), rules, by), (1, 2 * number + 1)) == "done"
        made = MakeToken(name, token.id, token.hash(), NOW_MS + 1, by)
        assert state.apply(made, (1, 2 * number + 2)) == "done"
    state.check_invariants()
    before, place = repr(state), (2, 1)
    refused = PutPrincipal("one-too-many", None, (), rules, by)
    started = time.thread_time()
    assert state.apply(refused, place) == "too-many-principals"
    judge = Judge(lambda: state)
    assert judge.identify(f"Bearer {tokens[-2].reveal()}", None, NOW_MS).principal == f"p{PRINCIPALS_MAX - 1}"
    assert time.thread_time() - started < 0.5
    assert repr(state) == before
    assert state.apply(DeletePrincipal("p0", (1, 1), by), place) == "done"
    assert state.apply(refused, (2, 2)) == "done"
    assert not judge.may(
        judge.identify(f"Bearer {tokens[1].reveal()}", None, NOW_MS),
        need(ResourceKind.TOPIC, Action.READ),
        "order",
    )
