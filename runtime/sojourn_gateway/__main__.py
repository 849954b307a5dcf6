"""`python -m sojourn_gateway`: the same as the command `sojourn-gateway`."""

from sojourn_gateway.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
