"""The model side of the runtime: weights, kernels, tokenizer and sampling; knows no requests
and no network.
"""
