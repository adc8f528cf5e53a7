"""How messages travel: their wire format, and the copies a site keeps of what it sent."""
