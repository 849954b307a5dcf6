"""What outlives the pod: journal, segments of KV blocks, manifests, and their store."""
