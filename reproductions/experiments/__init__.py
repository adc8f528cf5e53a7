"""The paper's claims, tried on simulated worlds whose truth is known. Run by `make reproduce WHAT=…`."""
