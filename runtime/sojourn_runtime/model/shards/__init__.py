"""One model computed by several processes of a pod (shards), split by outputs: the same bits."""
