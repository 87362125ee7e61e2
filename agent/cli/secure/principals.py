"""`shoal secure principal | role | token`: the principals of a running cluster, and what they may do.

Law of this file: it shows documents of an agent, and sends what was asked for. A token goes to standard
output once, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from shoal.agent.cli.terminal.connection import with_credentials
from shoal.agent.cli.terminal.options import (
    DEFAULT_AGENT,
    AgentOption,
    Output,
    OutputOption,
    YesOption,
    argument,
    example,
    group,
    name_of,
    option,
    with_json,
)
from shoal.agent.cli.terminal.output import UsageError, confirm, say, show_json, show_table, tell
from shoal.agent.cli.terminal.run import with_admin

PREFIX = "shoal_"
"""Of every token, and of no token's id."""

PrincipalName = Annotated[str, argument("PRINCIPAL", "The principal's name.", callback=name_of)]
RoleName = Annotated[str, argument("ROLE", "The role's name.", callback=name_of)]
RulesOption = Annotated[
    list[str] | None,
    option("RULE", "As topic:orders*=describe,read; repeatable.", "--rule", callback=name_of),
]
RolesOption = Annotated[
    list[str] | None,
    option("ROLE", "As viewer, or consumer:orders*; repeatable.", "--role", callback=name_of),
]
QuotasOption = Annotated[
    list[str] | None,
    option(
        "KIND=NUMBER",
        "bytes_in, bytes_out, requests a second; connections, waits, streams at once; repeatable.",
        "--quota",
        callback=name_of,
    ),
]
VersionOption = Annotated[
    str | None, option("VERSION", "Only if it is of this version, as shown.", "--if-version")
]

principals = group(
    "principal",
    "Principals: users and programs, with their roles and rules.",
    "shoal secure principal put ann --role admin",
    "shoal secure principal put bob --role 'consumer:orders*'",
    "shoal secure principal list",
)
roles = group(
    "role",
    "Roles: named lists of rules.",
    "shoal secure role put clerk --rule 'topic:orders*=describe,read'",
    "shoal secure role list",
)
tokens = group(
    "token",
    "Tokens of principals: at most two at a time, so that one takes the other's place.",
    "shoal secure token create bob --expires-in 30d",
    "shoal secure token list",
    "shoal secure token revoke ab3de5gh",
)


# ---- principals --------------------------------------------------------------------------------------------


@principals.command("list", epilog=example("shoal secure principal list"))
def list_principals(agent: AgentOption = DEFAULT_AGENT, output: OutputOption = Output.TABLE) -> None:
    """List the principals with their roles and rules."""
    found = with_admin(agent, lambda client: client.principals())
    if output is Output.JSON:
        show_json({"principals": found})
        return
    rows = [
        [entry["name"], ", ".join(entry["roles"]), ", ".join(entry["rules"]), len(entry["tokens"])]
        for entry in found
    ]
    show_table(["PRINCIPAL", "ROLES", "RULES", "TOKENS"], rows, whole=("PRINCIPAL",))


@principals.command("show", epilog=example("shoal secure principal show bob"))
def show_principal(
    name: PrincipalName, agent: AgentOption = DEFAULT_AGENT, output: OutputOption = Output.TABLE
) -> None:
    """Show one principal, with all that it may do."""
    found = with_admin(agent, lambda client: client.principal(name))
    if output is Output.JSON:
        show_json(found)
        return
    print(f"{found['name']}, version {found['version']}")
    show_table(["KIND", "VALUE"], [*(["role", one] for one in found["roles"]), *_rule_rows(found)])


@principals.command(
    "put",
    epilog=example(
        "shoal secure principal put ann --role admin",
        "shoal secure principal put bob --role 'consumer:orders*' --rule 'topic:returns=describe,write'",
        "shoal secure principal put bob --role 'consumer:orders*' --quota requests=50",
    ),
)
def put_principal(
    name: PrincipalName,
    role: RolesOption = None,
    rule: RulesOption = None,
    quota: QuotasOption = None,
    if_version: VersionOption = None,
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
) -> None:
    """Give a principal these roles, rules and quotas, and no others. Its tokens stay; a new one has none."""
    quotas = _quotas(quota or ())
    made, found = with_admin(
        agent, lambda client: client.put_principal(name, role or (), rule or (), if_version, quotas)
    )
    tell(found, output, f"{'made' if made else 'changed'} principal {name}")


@principals.command("delete", epilog=example("shoal secure principal delete bob --yes"))
def delete_principal(
    name: PrincipalName,
    yes: YesOption = False,
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete a principal, and with it its tokens."""
    confirm(f"Delete principal {name} and its tokens?", f"deleting {name}", yes=yes)
    with_admin(agent, lambda client: client.delete_principal(name))
    tell({"principal": name, "deleted": True}, output, f"principal {name} is deleted")


# ---- roles -------------------------------------------------------------------------------------------------


@roles.command("list", epilog=example("shoal secure role list"))
def list_roles(agent: AgentOption = DEFAULT_AGENT, output: OutputOption = Output.TABLE) -> None:
    """List the roles. Beside these there are `producer:TOPICS` and `consumer:TOPICS`, for any topics."""
    found = with_admin(agent, lambda client: client.roles())
    if output is Output.JSON:
        show_json({"roles": found})
        return
    rows = [[entry["name"], entry["built_in"], ", ".join(entry["rules"])] for entry in found]
    show_table(["ROLE", "BUILT-IN", "RULES"], rows, whole=("ROLE",))


@roles.command("show", epilog=example("shoal secure role show 'consumer:orders*'"))
def show_role(
    name: RoleName, agent: AgentOption = DEFAULT_AGENT, output: OutputOption = Output.TABLE
) -> None:
    """Show one role, also one that is built in."""
    found = with_admin(agent, lambda client: client.role(name))
    if output is Output.JSON:
        show_json(found)
        return
    show_table(["KIND", "VALUE"], _rule_rows(found))


@roles.command(
    "put",
    epilog=example(
        "shoal secure role put clerk --rule 'topic:orders*=describe,read' --rule 'group:orders*=consume'"
    ),
)
def put_role(
    name: RoleName,
    rule: RulesOption = None,
    quota: QuotasOption = None,
    if_version: VersionOption = None,
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
) -> None:
    """Give a role these rules and quotas, and no others. Principals that have the role may do so at once."""
    quotas = _quotas(quota or ())
    made, found = with_admin(agent, lambda client: client.put_role(name, rule or (), if_version, quotas))
    tell(found, output, f"{'made' if made else 'changed'} role {name}")


@roles.command("delete", epilog=example("shoal secure role delete clerk --yes"))
def delete_role(
    name: RoleName,
    yes: YesOption = False,
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete a role that no principal has."""
    confirm(f"Delete role {name}?", f"deleting {name}", yes=yes)
    with_admin(agent, lambda client: client.delete_role(name))
    tell({"role": name, "deleted": True}, output, f"role {name} is deleted")


# ---- tokens ------------------------------------------------------------------------------------------------


@tokens.command(
    "create",
    epilog=example(
        "(umask 077; shoal secure token create bob > bob.token)",
        "shoal secure token create bob --expires-in 30d",
    ),
)
def create_token(
    principal: PrincipalName,
    expires_in: Annotated[
        str | None, option("DURATION|never", "How long it is good; default 90d.", "--expires-in")
    ] = None,
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a token, and print it: the cluster keeps a hash, and nobody can show it again."""
    made = with_admin(agent, lambda client: client.make_token(principal, expires_in))
    if output is Output.JSON:
        show_json(made)
        return
    print(made["token"])
    say(f"token {made['id']} of {principal}, good until {made['expires_at'] or 'it is revoked'}")


@tokens.command("list", epilog=example("shoal secure token list"))
def list_tokens(agent: AgentOption = DEFAULT_AGENT, output: OutputOption = Output.TABLE) -> None:
    """List the tokens by id: whose they are, until when, and who made them."""
    found = with_admin(agent, lambda client: client.principals())
    listed = [{"principal": entry["name"], **token} for entry in found for token in entry["tokens"]]
    if output is Output.JSON:
        show_json({"tokens": listed})
        return
    rows = [
        [item["id"], item["principal"], item["expires_at"] or "never", item["made_by"], item["made_at"]]
        for item in listed
    ]
    show_table(["TOKEN", "PRINCIPAL", "EXPIRES", "MADE BY", "MADE"], rows, whole=("TOKEN",), spare=("MADE",))


@tokens.command("revoke", epilog=example("shoal secure token revoke ab3de5gh"))
def revoke_token(
    token: Annotated[str, argument("ID", "As `shoal secure token list` shows it.", callback=name_of)],
    agent: AgentOption = DEFAULT_AGENT,
    output: OutputOption = Output.TABLE,
) -> None:
    """Revoke a token: every agent that hears of it refuses the token within 5 s."""
    if token.startswith(PREFIX):  # it would stand in an address, which proxies log
        raise UsageError(
            "that is a whole token, which shows in every process list, and it was not sent",
            "name it by its id, the 8 characters behind shoal_, and do revoke it",
        )
    with_admin(agent, lambda client: client.revoke_token(token))
    tell({"token": token, "revoked": True}, output, f"token {token} is revoked")


def _rule_rows(found: Mapping[str, Any]) -> Sequence[list[str]]:
    quotas = found.get("quotas", {})
    return [
        *(["rule", one] for one in found["rules"]),
        *(["quota", f"{kind}={limit}"] for kind, limit in quotas.items()),
    ]


def _quotas(texts: Sequence[str]) -> dict[str, int]:
    """The agent says which kinds and numbers there are."""
    quotas = {}
    for text in texts:
        kind, _, number = text.partition("=")
        if not number.isdecimal():
            raise UsageError(f"--quota {text} is no quota", "say it as --quota requests=50")
        quotas[kind] = int(number)
    return quotas


GROUPS = tuple(with_json(with_credentials(commands)) for commands in (principals, roles, tokens))
