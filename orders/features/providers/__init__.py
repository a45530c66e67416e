"""Payment providers, which report payments."""
