"""The command `tenure`, also as `python -m app`."""

from __future__ import annotations

import sys

from app.errors import StartupProblem


def main() -> None:
    """Run the command line. Exit codes stand in docs/cli.md and in `tenure --help`."""
    try:
        from app.cli import command  # noqa: PLC0415 - importing it reads the environment, which may be wrong

        command.tenure.main(prog_name="tenure")
    except StartupProblem as problem:
        sys.stderr.write(f"tenure: {problem}\n")
        sys.exit(problem.exit_code)


if __name__ == "__main__":
    main()
