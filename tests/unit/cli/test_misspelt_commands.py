"""A command that does not exist, but nearly."""

from __future__ import annotations

from click.testing import CliRunner

from scope.cli.main import app


def test_the_command_that_was_meant_is_told() -> None:
    """British spelling gets the American name; what is like nothing gets none."""
    done = CliRunner().invoke(app, ["analyse", "x"])
    assert done.exit_code == 2
    assert "Did you mean 'analyze'?" in done.output
    assert "Did you mean" not in CliRunner().invoke(app, ["xyzzy"]).output
