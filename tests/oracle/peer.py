#!/usr/bin/env python3
"""The two ends of a checked transfer, for machines that have Python and nothing else.

    peer.py serve                       until killed: TCP port 80, every address of both families
    peer.py ask ADDRESS BYTES [TIMES]   TIMES connections, each BYTES up and BYTES down, compared by SHA-256

The client sends its name (8 bytes), a length (8 bytes, network order) and that many bytes; the server answers with the SHA-256
of what came, the name, and as many bytes of its own. A wrong byte, a connection mixed up with another or one that
hangs for 30 seconds ends `ask` with a sentence and status 1.
"""
import hashlib
import os
import random
import socket
import struct
import sys
import threading


def pattern(name, length):
    """Bytes that depend on the connection's name, so that a mix-up shows."""
    return random.Random(name).randbytes(length)


def take(sock, length):
    parts = []
    while length:
        part = sock.recv(min(length, 1 << 16))
        if not part:
            raise ConnectionError(f"closed {length} bytes too soon")
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def answer(sock):
    with sock:
        sock.settimeout(30)
        try:
            name, length = struct.unpack("!8sQ", take(sock, 16))
            digest = hashlib.sha256(take(sock, length)).digest()
            sock.sendall(digest + name + pattern(name + b"down", length))
        except (OSError, struct.error) as e:
            print(f"server: {e}", file=sys.stderr, flush=True)


def serve():
    listener = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listener.bind(("::", 80))
    listener.listen(64)
    print("listening", flush=True)
    while True:
        sock, _ = listener.accept()
        threading.Thread(target=answer, args=(sock,), daemon=True).start()


def ask(address, length, times):
    for n in range(times):
        name = os.urandom(4).hex().encode()
        up = pattern(name + b"up", length)
        with socket.create_connection((address, 80), timeout=30) as sock:
            sock.sendall(name + struct.pack("!Q", length) + up)
            if take(sock, 32) != hashlib.sha256(up).digest():
                raise ConnectionError(f"connection {n}: what arrived at the server is not what was sent")
            if take(sock, 8) != name:
                raise ConnectionError(f"connection {n}: an answer of another connection")
            if take(sock, length) != pattern(name + b"down", length):
                raise ConnectionError(f"connection {n}: what arrived at the client is not what was sent")


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    elif len(sys.argv) in (4, 5) and sys.argv[1] == "ask":
        try:
            ask(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) == 5 else 1)
        except OSError as e:
            sys.exit(f"client: {e}")
    else:
        sys.exit(__doc__)
