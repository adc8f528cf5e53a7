"""What a policy is worth, from data that another policy made."""
