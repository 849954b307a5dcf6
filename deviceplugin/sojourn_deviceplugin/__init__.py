"""The device plugin: one per GPU node, offering slices of its GPUs to the kubelet."""
