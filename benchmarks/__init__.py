"""What the documentation's figures come from."""
