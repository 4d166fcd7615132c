"""The request handlers, one file per API, and their one registry."""
