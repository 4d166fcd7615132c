"""Read-only pages: each module has the handlers and routes of one part of the navigation."""
