"""`python -m fdtr` is `fdtr`."""

from fdtr.cli import main

if __name__ == "__main__":
    main()
