"""Reads effective cpusets back and compares them with the ledger."""
