"""One connection: uvicorn's protocol on httptools, of which a client cannot have more kept than a head of some length."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_MOST_BESIDE_NBYTES = 1 << 16  # in a row, of what is no body: request lines, headers, trailers, the frames of chunks


class Connection(HttpToolsProtocol):
    """Uvicorn's, whose parser keeps headers for as long as they go on."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._beside_nbytes = 0

    def data_received(self, data: bytes) -> None:
        self._beside_nbytes += len(data)
        super().data_received(data)
        if self._beside_nbytes > _MOST_BESIDE_NBYTES and not self.transport.is_closing():
            self.send_400_response(f"More than {_MOST_BESIDE_NBYTES} bytes of headers.")

    def on_headers_complete(self) -> None:
        if self.parser.get_http_version() not in ("1.0", "1.1"):
            raise ValueError("another version of HTTP")  # the parser's caller answers 400
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._beside_nbytes = max(0, self._beside_nbytes - len(body))
        super().on_body(body)

    def on_chunk_complete(self) -> None:
        self._beside_nbytes = 0

    def on_message_complete(self) -> None:
        self._beside_nbytes = 0
        super().on_message_complete()
