"""Topology: frozen model and the sysfs reader."""
