"""Results as text, JSON and HTML, and findings in words."""
