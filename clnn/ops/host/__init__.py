"""Operators computed with numpy between the plans of a network whose shapes depend on data."""
