"""What the paper claims, tried on worlds whose truth is known."""
