"""The kubelet side: devices, claims, CDI, registration, gRPC service, slices."""
