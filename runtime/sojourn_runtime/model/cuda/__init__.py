"""The model on CUDA in row-exact Triton kernels; importing anything here imports torch."""
