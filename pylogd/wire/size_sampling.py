"""Measure the sizes of some requests and responses, at no cost for the others.

Strategy: `sample` replaces each codec that sessions have used by a measuring codec. Its first use measures, and puts
the plain codec back. So the first request and the first response of an API and version are never measured. Sizes are
those of messages, without the header. Handlers that encode responses without a codec report the sizes themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from pylogd.wire.session import DECODERS, ENCODERS, Decoder, Encoder

#: A function that is told an API key and a size in bytes.
Observe = Callable[[int, int], object]
_KEY_BITS: Final = 16


class SizeSampler:
    """See the module. A sampler works on the codecs of the whole process."""

    def __init__(self, request: Observe, response: Observe) -> None:
        """request, response: called with the API and the size of each sampled message."""
        self._request = request
        self._response = response

    def sample(self) -> None:
        """Measure the next request and the next response of each API and version."""
        for decoders in DECODERS.values():
            for key, decoder in list(decoders.items()):
                if not isinstance(decoder[1], _Measuring):
                    decoders[key] = self._measuring_decoder(decoders, key, decoder)
        for key, encoder in list(ENCODERS.items()):
            if not isinstance(encoder[1], _Measuring):
                ENCODERS[key] = self._measuring_encoder(key, encoder)

    def _measuring_decoder(self, decoders: dict[int, Decoder], key: int, plain: Decoder) -> Decoder:
        flexible, decode, decode_large, most = plain

        def measured(body: Any) -> Any:
            decoders[key] = plain
            self._request(key >> _KEY_BITS, len(body))
            return decode(body)

        return flexible, _Measuring(measured), decode_large, most

    def _measuring_encoder(self, key: int, plain: Encoder) -> Encoder:
        flexible, encode = plain

        def measured(response: Any) -> Any:
            ENCODERS[key] = plain
            parts = encode(response)
            self._response(key >> _KEY_BITS, sum(map(len, parts)))
            return parts

        return flexible, _Measuring(measured)


class _Measuring:
    """A function that measures."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def __call__(self, message: Any) -> Any:
        return self._function(message)
