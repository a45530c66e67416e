"""The shelf: what there is to sell."""
