"""Measure what prefill costs when only the new tokens of an agent's step have to be decoded."""

__version__ = "0.1.0"
