"""The run directory: schema, black box, writers and plain readers."""
