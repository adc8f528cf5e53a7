"""A site's part: read its table, fit alone, make its message, finish its policy from the total, and evaluate it."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
