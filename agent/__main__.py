"""`python -m shoal.agent` is the command `shoal`."""

from shoal.agent.cli.start import run

if __name__ == "__main__":
    run()
