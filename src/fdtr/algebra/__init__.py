"""The method's linear algebra: arrays in, arrays out, with numpy and scipy alone."""
