"""The hands of the operator: each module writes one kind of thing, and decides nothing."""
