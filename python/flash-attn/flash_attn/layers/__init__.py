"""Layers that stand around attention."""
