"""Pure core: which request computes which tokens in which blocks. No arrays, clock or I/O."""
