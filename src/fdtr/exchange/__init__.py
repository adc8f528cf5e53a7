"""How messages travel: files, a shared folder, a network; and what a site keeps of what it sent."""
