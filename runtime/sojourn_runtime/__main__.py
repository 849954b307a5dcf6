"""`python -m sojourn_runtime`: the same as the command `sojourn-runtime`."""

from sojourn_runtime.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
