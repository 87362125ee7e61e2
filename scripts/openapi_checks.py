"""What schemathesis is told of this API beside its description: a check of its own, in the fuzzer's process.

Law of this file: schemathesis loads it by name and nobody else imports it. It stands in for the built-in
check of what fits the description, which knows nothing of rules between parameters, nor that an offset may
lie outside a log; which requests break a rule is description_rules.py's to say.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlsplit

import schemathesis
from description_rules import broken_rule

# Not there, there already, an offset that was trimmed or lies beyond the end, more than the replica here
# knows, as much as the agent can do.
MET = {404, 409, 410, 416, 421, 429}


@schemathesis.check  # type: ignore[untyped-decorator]
def what_fits_is_taken_and_rules_are_kept(ctx: Any, response: Any, case: Any) -> None:
    """A request that fits the description is called wrong exactly if it breaks a rule."""
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return
    request = response.request
    query = dict(parse_qsl(urlsplit(request.url).query, keep_blank_values=True))
    operation = case.operation.definition.raw.get("operationId", "")
    rule = broken_rule(operation, query, request.headers)
    wrong = 400 <= response.status_code < 500 and response.status_code not in MET
    if wrong and rule is None:
        raise AssertionError(f"what fits the description was refused: {response.status_code}")
    if response.status_code < 300 and rule is not None:
        raise AssertionError(f"taken, though {rule}")
