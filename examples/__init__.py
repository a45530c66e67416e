"""The demo, and a short example for each kind of flow. Not part of the distribution."""
