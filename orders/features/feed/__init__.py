"""A client's events, in a sequence whose readers miss none."""
