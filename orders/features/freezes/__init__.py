"""Freezes: deadlines stand still, and every order gets back the time that it lost."""
