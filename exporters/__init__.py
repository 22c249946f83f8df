"""One process a node: hardware and the local run directories become Prometheus series."""
