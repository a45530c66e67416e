"""The service under requests that schemathesis makes of its description."""

#: Stocked from the start, beside what the requests stock; the first is in the examples.
SKUS = ("mug", "tea", "pot")
