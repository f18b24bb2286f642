"""Convolutions as a product of matrices, over rows that are gathered first."""
