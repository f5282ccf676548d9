"""Attention as modules."""
