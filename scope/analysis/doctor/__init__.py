"""What is wrong with a node, and what differs between nodes or ranks of a job."""
