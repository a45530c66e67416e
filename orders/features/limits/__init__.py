"""How much a client may reserve without paying."""
