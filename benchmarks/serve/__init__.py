"""The server: latency over HTTP, crowds of clients, memory."""
