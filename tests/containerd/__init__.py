"""A real containerd on this host, and a node around it."""
