"""Handlers for the most frequent requests, without message objects; everything else is left to the general handlers."""
