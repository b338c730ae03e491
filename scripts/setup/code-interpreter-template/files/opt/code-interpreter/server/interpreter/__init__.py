"""Runs code for E2B's code interpreter SDKs: their HTTP interface in front of Jupyter kernels."""
