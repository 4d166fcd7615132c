"""Administrative operations, written once for all faces as coroutines."""
