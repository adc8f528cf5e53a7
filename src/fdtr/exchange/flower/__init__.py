"""Flower as the carrier of a federation; what it carries, and every rule, is in `fdtr.exchange.remote`."""
