"""Pages that show: each module has the handlers of one part of the navigation, and its routes."""
