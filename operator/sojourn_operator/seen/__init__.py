"""What was seen of the cluster and of the runtimes, typed."""
