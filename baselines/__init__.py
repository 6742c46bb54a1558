"""Competing systems, one module each, and the float64 reference they are all held to."""
