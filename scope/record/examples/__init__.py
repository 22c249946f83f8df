"""Training scripts that run as they stand; `scope demo` and the tests record them."""
