"""The container runtime side: NRI."""
