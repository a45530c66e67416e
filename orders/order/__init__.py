"""An order: its rules, its statements, and what can be done with it."""
