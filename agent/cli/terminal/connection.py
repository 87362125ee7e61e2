"""The agents that a command asks, and its credentials: by options, by variables, else by the user's context.

Law of this file: it decides which of the three counts. A context's credentials go to that context's agents
only: a command that names other agents does not send them along.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from shoal.agent.cli.terminal.contexts import CONTEXT_VARIABLE, KnownCluster, config_path, read_contexts
from shoal.agent.cli.terminal.options import DEFAULT_AGENT, option
from shoal.agent.cli.terminal.output import UsageError

if TYPE_CHECKING:
    from shoal.credentials import CredentialOptions, Credentials

OPTIONS: Final = ("token", "ca", "certificate", "key")
_OWN_PAIR: Final = ("certificate", "key")
_NOTHING: Final = KnownCluster()
_typed: ContextVar[KnownCluster] = ContextVar("typed", default=_NOTHING)
"""The options of the command that runs, under those of its context."""


def token_file(value: str | None) -> str | None:
    """The value of --token. Raises UsageError for a token itself, without showing it again. It is no
    callback, which typer would look at once for each command."""
    if value is not None and not value.startswith("@"):
        raise UsageError(
            "--token takes @FILE: a token in a command line shows in every process list",
            "put it into a file of your own, or into SHOAL_TOKEN",
        )
    return value


PARAMETERS: Final[Mapping[str, Any]] = {
    "token": Annotated[
        str | None,
        option("@FILE", "A file with the token of each request; or SHOAL_TOKEN.", "--token"),
    ],
    "ca": Annotated[
        str | None, option("FILE", "The authority of the agents' certificates; or SHOAL_CA.", "--ca")
    ],
    "certificate": Annotated[
        str | None, option("FILE", "Your own certificate, where agents ask for one; or SHOAL_CERTIFICATE.")
    ],
    "key": Annotated[str | None, option("FILE", "Its key; or SHOAL_CERTIFICATE_KEY.", "--certificate-key")],
}


def with_credentials(app: typer.Typer) -> typer.Typer:
    """The same, with --token, --ca, --certificate and its key beside each --agent."""
    for known in app.registered_commands:
        command = known.callback
        assert command is not None
        if "agent" in command.__annotations__:  # a signature takes a tenth of a millisecond, of each command
            known.callback = _taking_credentials(command)
    return app


def _taking_credentials(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with more parameters, as typer reads them."""
    parameters = list(inspect.signature(command, eval_str=True).parameters.values())
    place = [one.name for one in parameters].index("agent") + 1
    own, kind = {one.name for one in parameters}, parameters[place - 1].kind
    names = {name: f"{name}_of_tls" if name in own else name for name in OPTIONS}  # rows have a key, too
    parameters[place:place] = [
        inspect.Parameter(names[name], kind, default=None, annotation=annotation)
        for name, annotation in PARAMETERS.items()
    ]
    parameters.insert(0, inspect.Parameter("typed_in", kind, annotation=typer.Context))

    def taking(*, typed_in: typer.Context, agent: str, **given: Any) -> Any:
        source = typed_in.get_parameter_source("agent")
        is_named = source is not None and source.name in ("COMMANDLINE", "ENVIRONMENT")
        typed = {name: given.pop(names[name]) for name in OPTIONS}
        token_file(typed["token"])
        agent, context = chosen(agent if is_named else None, typed)
        token = _typed.set(context)
        try:
            return command(agent=agent, **given)
        finally:
            _typed.reset(token)

    taking.__name__, taking.__doc__ = command.__name__, command.__doc__
    taking.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    taking.__annotations__ = {one.name: one.annotation for one in parameters}
    return taking


def chosen(agent: str | None, typed: Mapping[str, str | None]) -> tuple[str, KnownCluster]:
    """The agents, and the credentials that no variable gives. `agent`: by option or variable. Raises CliError
    for a file of contexts that is none, and for a context that does not exist."""
    context = KnownCluster()
    if agent is None:
        contexts = read_contexts(config_path(os.environ))
        name = os.environ.get(CONTEXT_VARIABLE, contexts.current)
        context = contexts.named(name) if name else context
    given = {name: value for name, value in typed.items() if value is not None}
    for name in OPTIONS:
        group = _OWN_PAIR if name in _OWN_PAIR else (name,)
        if any(one in given or os.environ.get(_variable(one)) for one in group):
            context = replace(context, **{name: given.get(name, "")})
    return agent or context.agent or DEFAULT_AGENT, context


def _variable(name: str) -> str:
    return "SHOAL_CERTIFICATE_KEY" if name == "key" else f"SHOAL_{name.upper()}"


def credential_options() -> CredentialOptions:
    """Of the command that runs, as a client takes them: None where a variable may say more."""
    context = _typed.get()
    return {
        "token": context.token or None,
        "ca": context.ca or None,
        "certificate": context.certificate or None,
        "key": context.key or None,
    }


def credentials() -> Credentials:
    """Of the command that runs. Raises ClientError."""
    from shoal.credentials import credentials_of

    return credentials_of(os.environ, **credential_options())


def variables(agent: str) -> dict[str, str]:
    """The environment by which another program asks the same agents with the same credentials."""
    typed = credential_options()
    found = {_variable(name): str(value) for name, value in typed.items() if value}
    for name, value in found.items():
        is_path = name != "SHOAL_TOKEN" or value.startswith("@")
        found[name] = (
            f"{'@' * value.startswith('@')}{os.path.abspath(value.lstrip('@'))}" if is_path else value
        )
    return {"SHOAL_AGENT": agent, **found}
