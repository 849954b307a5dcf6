"""The operator: watches the cluster, decides with `plan`, and acts."""
