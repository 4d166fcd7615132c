"""Code that the faces on event loops share: `aio` on asyncio and `deferred` on Twisted differ only in `loop.Loop`."""
