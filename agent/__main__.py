"""`python -m shoal.agent` is the command `shoal`."""

from shoal.agent.cli.main import run

if __name__ == "__main__":
    run()
