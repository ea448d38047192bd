"""Kernels that serve any network: what sets one layer apart from another is in their arguments."""
