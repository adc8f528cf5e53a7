"""Run `python -m experiments`, as `make reproduce` does."""

from experiments.command import main

if __name__ == "__main__":  # processes that share the work import this module too
    main()
