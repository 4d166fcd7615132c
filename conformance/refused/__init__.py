"""Requests that a broker refuses, as tables: `model` has what they are made of, the other modules have the requests."""
