"""What the faces on event loops share: `aio` on asyncio and `deferred` on Twisted differ in `loop.Loop` only."""
