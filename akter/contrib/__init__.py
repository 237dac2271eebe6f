"""Bridges to frameworks; each needs its framework installed, and the rest of akter imports none of them."""
