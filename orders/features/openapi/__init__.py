"""The API's description, and a page that shows it."""
