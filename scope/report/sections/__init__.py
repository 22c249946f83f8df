"""The sections of a report: results of analyses become tables."""
