"""The `scope` command: one file a command, registered in `scope.cli.main`."""
