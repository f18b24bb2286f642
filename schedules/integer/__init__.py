"""Convolutions and products of integers of 8 bits, in integer arithmetic."""
