"""`python -m scope` is the `scope` command."""

from scope.cli.main import main

if __name__ == "__main__":
    main()
