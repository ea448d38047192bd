"""Arithmetics: how numbers are multiplied, summed, rounded and clipped, apart from any geometry."""
