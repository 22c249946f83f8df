"""The Streamlit app and the rules, manifests and boards for Prometheus, Alertmanager and Grafana."""
