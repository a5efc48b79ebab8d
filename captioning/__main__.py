"""Runs the command line: ``python -m captioning``."""

from captioning.cli.main import main

if __name__ == "__main__":
    main()
