"""``python -m captioning``."""

from captioning.cli import main

if __name__ == "__main__":
    main()
