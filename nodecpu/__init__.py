"""nodecpu owns the CPUs of a Kubernetes node: a DRA driver and an NRI plugin over one set of books."""

__version__ = "0.1.0"
