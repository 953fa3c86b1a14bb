"""Logs that people have already, one module a format, turned into the project's traces."""
