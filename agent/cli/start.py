"""The entry point of `shoal`, which imports the commands.

Law of this file: Ctrl-C ends a command that has not begun as it ends one that runs. It imports nothing else,
since whatever stands above the function is imported without that rule.
"""

import sys

INTERRUPTED = 130  # 128 + SIGINT, as shells count


def run() -> None:
    """Import the commands, which takes a third of a second where the machine is busy, and run one."""
    try:
        from shoal.agent.cli.main import run as run_command
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    run_command()
