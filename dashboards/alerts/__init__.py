"""Alert and recording rules for Prometheus, from one table: rule file, PrometheusRule manifest, runbook."""
