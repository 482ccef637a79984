"""Measurements: ratios within one run, printed as a table. Nothing here is a test, and nothing fails on time."""
