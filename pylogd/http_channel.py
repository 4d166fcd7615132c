"""HTTP connections on which a whole request must arrive within Twisted's idle time (`timeOut`)."""

from __future__ import annotations

from twisted.web.http import HTTPChannel


class DeadlineChannel(HTTPChannel):
    """A connection that is closed if a request, headers and body, does not arrive in time.

    Twisted restarts the idle time with all bytes that arrive, so a client could keep a connection by sending slowly.
    """

    _receiving = False

    def resetTimeout(self) -> None:
        """Start the idle time with the first bytes of a request, and do not restart it with later ones."""
        if not self._receiving:
            self._receiving = True
            super().resetTimeout()  # type: ignore[no-untyped-call]

    def allContentReceived(self) -> None:
        """Handle the request, which is complete."""
        self._receiving = False
        super().allContentReceived()  # type: ignore[no-untyped-call]
