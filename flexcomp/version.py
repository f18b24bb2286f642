"""The version of flexcomp, which artifacts and measurements carry."""

__version__ = "0.1.0"
