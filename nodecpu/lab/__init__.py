"""Stand-ins for kubelet, runtime and API server over the real protocols."""
