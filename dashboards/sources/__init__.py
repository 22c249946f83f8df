"""What a page shows: run directories, traces and Prometheus servers, each under an id of the server's own list."""
