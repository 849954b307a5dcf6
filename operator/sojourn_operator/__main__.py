"""`python -m sojourn_operator` is `sojourn-operator`."""

from sojourn_operator.cli import main

raise SystemExit(main())
