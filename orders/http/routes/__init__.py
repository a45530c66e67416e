"""The HTTP API: parse, call one method of the service, render. One file for each kind of thing."""
