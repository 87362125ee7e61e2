"""The command `shoal`: which commands there are, and how any of them ends.

Law of this file: it composes. The commands live in the files beside it. It imports nothing heavy, so that
--help answers at once.
"""

from __future__ import annotations

import functools
import os
import sys
from enum import Enum
from typing import Annotated, Any

import typer
from typer import TyperException

from shoal import __version__
from shoal.agent.cli import agent as agent_commands
from shoal.agent.cli import cluster, config, context, drain, group, keys, level, partition, spark, topic
from shoal.agent.cli.bench import command as bench
from shoal.agent.cli.examine import doctor, log
from shoal.agent.cli.records import audit, consume, produce, table
from shoal.agent.cli.secure import command as secure
from shoal.agent.cli.start import INTERRUPTED
from shoal.agent.cli.terminal.completion import join_bash_words
from shoal.agent.cli.terminal.connection import with_credentials
from shoal.agent.cli.terminal.options import (
    DEFAULT_AGENT,
    Output,
    OutputOption,
    argument,
    example,
    flag,
    option,
    with_json,
)
from shoal.agent.cli.terminal.output import (
    CliError,
    UsageError,
    drop_stdout,
    fail,
    reopen_closed,
    say,
    show_json,
)
from shoal.agent.cli.top import command as top
from shoal.agent.process.footprint import import_no_frames

BROKEN_PIPE = 141  # 128 + SIGPIPE
COMPLETION_VARIABLE = "_SHOAL_COMPLETE"  # a shell that asks for completions sets it

app = typer.Typer(
    name="shoal",
    help="A peer-to-peer message log: agents that find each other, replicate, and serve curl and Spark.",
    epilog=example("shoal dev", "echo hello | shoal produce greetings", "shoal consume greetings"),
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
own = typer.Typer()
single = (
    agent_commands.app,
    doctor.app,
    cluster.app,
    drain.app,
    keys.app,
    produce.app,
    consume.app,
    audit.app,
    top.app,
    bench.app,
    own,
)
groups = (
    config.configs,
    context.context,
    secure.secure,
    keys.keys,
    level.cluster,
    topic.topics,
    group.groups,
    table.tables,
    partition.partitions,
    log.logs,
    spark.spark,
)
for commands in (*single, *groups):  # `own` has no commands yet
    known = commands if commands is context.context else with_credentials(commands)
    app.add_typer(with_json(known))


def _version(wanted: bool) -> None:
    if wanted:
        print(f"shoal {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", "-V", "-v", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
    agent: Annotated[str | None, option("URL[,URL]", "As --agent behind any command.", "--agent")] = None,
    as_json: Annotated[bool, flag("As --output json behind any command that has it.", "--json")] = False,
) -> None:
    """Options before the command."""
    if agent is not None and not agent.strip():
        raise UsageError("--agent is empty", f"give a URL like {DEFAULT_AGENT}, or leave it out")
    if agent is not None:
        known = os.environ.get("SHOAL_AGENT")
        os.environ["SHOAL_AGENT"] = agent
        context.call_on_close(lambda: _restore("SHOAL_AGENT", known))
    if as_json:
        context.default_map = _json_defaults(context.command)


def _restore(variable: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(variable, None)
    else:
        os.environ[variable] = value


def _json_defaults(command: Any) -> dict[str, Any]:
    """`output` of every command below that shows documents or records; of others it is a file."""
    defaults: dict[str, Any] = {}
    for name, below in getattr(command, "commands", {}).items():
        if getattr(below, "commands", None):
            defaults[name] = _json_defaults(below)
        for one in below.params:
            choices = [choice.value for choice in type(one.default)] if isinstance(one.default, Enum) else []
            if one.name == "output" and "json" in choices:
                defaults[name] = {"output": "json"}
    return defaults


@own.command("version", epilog=example("shoal version"))
def show_version(output: OutputOption = Output.TABLE) -> None:
    """Show the version."""
    if output is Output.JSON:
        show_json({"version": __version__})
    else:
        print(f"shoal {__version__}")


with_json(own)


@own.command("help", epilog=example("shoal help topic create"))
def show_help(command: Annotated[list[str] | None, argument("COMMAND", "A command.")] = None) -> None:
    """Show a command's help, as its --help does."""
    raise AssertionError("main() has made --help of it")


@functools.cache
def root_command() -> Any:
    """All commands, ready to parse words. Making them takes 0.06 s: once a process, however many it runs."""
    return typer.main.get_command(app)


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns its exit code, 0 only for success."""
    reopen_closed()
    join_bash_words(os.environ)
    code: object = 0
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] == ["help"] and not {"-h", "--help"} & set(words):
        arguments = [*words[1:], "--help"]
    try:
        code = root_command()(arguments, prog_name="shoal", standalone_mode=False)
        sys.stdout.flush()
    except CliError as error:
        fail(error.message, error.advice)
        return error.exit_code
    except TyperException as error:
        message = error.format_message()
        if "\n" in message:  # no command was given: this is the help
            say(message)
        else:
            said = message.rstrip(".").replace("Value error, ", "")
            fail(said, "`--help` shows how it is used")
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except SystemExit as ended:
        if COMPLETION_VARIABLE in os.environ or not ended.code:
            return int(ended.code or 0)  # fish acts on it; --install-completion ends so, too
        drop_stdout()  # typer ends so where the reader (`| head`) closed the pipe before the command ended
        return BROKEN_PIPE
    except BrokenPipeError:
        drop_stdout()  # the command had ended: nothing failed
    except OSError as error:
        drop_stdout()
        fail(f"{error.filename or 'the output cannot be written'}: {error.strerror or error}")
        return 1
    return code if isinstance(code, int) else 0


def run() -> None:
    """The entry point. No command uses frames: without them, one that sends records starts a third sooner."""
    import_no_frames()
    sys.exit(main())
