def read_records(function: int, ssl: int, buffer: memoryview | bytearray, most: int, /) -> tuple[int, int]: ...
def receive_records(
    functions: tuple[int, int, int],
    ssl: int,
    bio: int,
    socket: int,
    buffer: memoryview | bytearray,
    most: int,
    received: bytearray,
    limit: int,
    /,
) -> tuple[int, int, int]: ...
def send_records(
    functions: tuple[int, int], ssl: int, bio: int, socket: int, data: bytes | memoryview, encrypted: bytearray, /
) -> tuple[int, bytes]: ...
