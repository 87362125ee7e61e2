"""The command `shoal`: which commands there are, and how any of them ends.

Law of this file: it composes; the commands live in the files beside it. Nothing heavy is imported here:
--help answers at once.
"""

from __future__ import annotations

import sys

import typer
from typer import TyperException

from shoal import __version__
from shoal.agent.cli import (
    agent_commands,
    cluster,
    consume,
    doctor,
    drain,
    keys,
    log,
    partition,
    produce,
    spark,
    topic,
)
from shoal.agent.cli.output import CliError, drop_stdout, example, fail, reopen_closed, say
from shoal.agent.lean_imports import import_no_frames

INTERRUPTED = 130  # 128 + SIGINT, as shells count
BROKEN_PIPE = 141  # 128 + SIGPIPE

app = typer.Typer(
    name="shoal",
    help="A peer-to-peer message log: agents that find each other, replicate, and serve curl and Spark.",
    epilog=example("shoal dev", "echo hello | shoal produce greetings", "shoal consume greetings"),
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
agent_commands.register(app)
doctor.register(app)
cluster.register(app)
drain.register(app)
keys.register(app)
topic.register(app)
partition.register(app)
produce.register(app)
consume.register(app)
log.register(app)
spark.register(app)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"shoal {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version."
    ),
) -> None:
    """Options before the command."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns its exit code: 0 only if all went well."""
    reopen_closed()
    code: object = 0
    try:
        code = app(arguments, standalone_mode=False)
        sys.stdout.flush()
    except CliError as error:
        fail(error.message, error.advice)
        return error.exit_code
    except TyperException as error:
        message = error.format_message()
        if "\n" in message:  # no command was given: this is the help
            say(message)
        else:
            fail(message.rstrip("."), "`--help` shows how it is used")
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except SystemExit:
        drop_stdout()  # how typer ends where the reader has seen enough (`| head`) before all was done
        return BROKEN_PIPE
    except BrokenPipeError:
        drop_stdout()  # all was done, and the reader has seen enough of it: nothing failed for that
    except OSError as error:
        drop_stdout()
        fail(f"{error.filename or 'the output cannot be written'}: {error.strerror or error}")
        return 1
    return code if isinstance(code, int) else 0


def run() -> None:
    """The entry point. No command uses frames: without them, one that sends records starts a third sooner."""
    import_no_frames()
    sys.exit(main())
