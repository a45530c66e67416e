"""Keeps one caller, one slow sender or one popular SKU from taking what all share."""
