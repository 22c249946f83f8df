"""`python -m exporters`: run the node exporter, or write a target file for Prometheus."""

from __future__ import annotations

import sys

from exporters.app import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
