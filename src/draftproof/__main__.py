"""`python -m draftproof` is the command `draftproof`."""

from .cli import main

if __name__ == "__main__":
    main()
