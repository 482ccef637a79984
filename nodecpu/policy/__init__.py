"""Pure policy: pools, ledger, requests, scoring, picking."""
