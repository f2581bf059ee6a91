"""Nereid's Python package: what Python models use, and the process that runs them."""
