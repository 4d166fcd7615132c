"""The settings of a topic's codec: `compression.type`, and the levels of the codecs that have one (KIP-390).

A part of the table in `broker`; a topic may set each of them too (`topic`).
"""

from __future__ import annotations

from typing import Final

from pylogd.config.values import INT_MAX, ConfigType, Mode, Setting

_LOG: Final = "Log"
CODECS: Final = ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")
#: Kafka's default of `max.decompressed.message.bytes`: the largest array in Java.
LARGEST_RECORD: Final = INT_MAX - 8

COMPRESSION_SETTINGS: Final = (
    Setting(
        "compression.type",
        ConfigType.STRING,
        "producer",
        "The codec in which batches are stored. `producer`: that of each batch. With another value the broker "
        "compresses a producer's batch anew if the batch has another codec, and checks its records; this is done in a "
        "thread. A batch that has the codec already is stored as it is, whatever its level.",
        _LOG,
        choices=CODECS,
        mode=Mode.DYNAMIC,
    ),
    Setting(
        "compression.gzip.level",
        ConfigType.INT,
        -1,
        "The level at which the broker compresses with gzip, if `compression.type` is `gzip`. -1: the codec's default.",
        _LOG,
        minimum=1,
        maximum=9,
        special=(-1,),
        mode=Mode.DYNAMIC,
    ),
    Setting(
        "compression.lz4.level",
        ConfigType.INT,
        9,
        "The level at which the broker compresses with LZ4, if `compression.type` is `lz4`. As in Kafka the default "
        "means the fast compressor, and any other level the one with a high ratio; levels above 12 equal 12.",
        _LOG,
        minimum=1,
        maximum=17,
        mode=Mode.DYNAMIC,
    ),
    Setting(
        "compression.zstd.level",
        ConfigType.INT,
        3,
        "The level at which the broker compresses with Zstandard, if `compression.type` is `zstd`.",
        _LOG,
        minimum=-131_072,
        maximum=22,
        mode=Mode.DYNAMIC,
    ),
    Setting(
        "max.decompressed.message.bytes",
        ConfigType.INT,
        LARGEST_RECORD,
        "Largest record of a compressed batch, in bytes when it is decompressed. With a smaller value than the "
        "default the broker decompresses all compressed batches of producers, in a thread, and refuses those with a "
        "larger record. (Kafka checks it in compactions and look-ups by time too.)",
        _LOG,
        minimum=1,
        maximum=LARGEST_RECORD,
        mode=Mode.DYNAMIC,
    ),
)
