"""Helpers of upstream's models."""
