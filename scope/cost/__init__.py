"""What work should cost: FLOPs and bytes of operators, bytes and times of collectives."""
