"""The hands of the operator: each module writes one kind of thing to the cluster, and decides nothing."""
