#!/usr/bin/env python3
"""The two ends of a checked transfer, for machines that have Python and nothing else.

    peer.py serve                       until killed: TCP and UDP port 80, every address of both families
    peer.py ask ADDRESS BYTES [TIMES]   TIMES connections, each BYTES up and BYTES down, compared by SHA-256
    peer.py echo ADDRESS TIMES          TIMES datagrams of one flow, each sent again until it has come back, and compared

The client sends its name (8 bytes), a length (8 bytes, network order) and that many bytes; the server answers with the SHA-256
of what came, the name, and as many bytes of its own. A wrong byte, a connection mixed up with another or one that
hangs for 30 seconds ends `ask` with a sentence and status 1; so does a wrong byte, or no answer in 30 seconds, `echo`.
"""
import hashlib
import os
import random
import socket
import struct
import sys
import threading
import time


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


def echoes():
    """Answers come from the address that was asked."""
    sock = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
    sock.bind(("::", 80))
    return sock


def echo_all(sock):
    while True:
        try:
            data, words, _, client = sock.recvmsg(1 << 16, 256)
            # without the interface, which may be another one on the way back
            source = [(level, kind, word[:16] + bytes(4)) for level, kind, word in words]
            sock.sendmsg([data], source, 0, client)
        except OSError as e:
            print(f"server: {e}", file=sys.stderr, flush=True)


def serve():
    threading.Thread(target=echo_all, args=(echoes(),), daemon=True).start()
    listener = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listener.bind(("::", 80))
    listener.listen(64)
    print("listening", flush=True)
    while True:
        sock, _ = listener.accept()
        threading.Thread(target=answer, args=(sock,), daemon=True).start()


def ask(address, length, times=1):
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


def echo(address, times):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.connect((address, 80))
        sock.settimeout(1)
        for n in range(times):
            sent = struct.pack("!I", n) + os.urandom(n * 37 % 1400)
            end = time.monotonic() + 30
            while not came_back(sock, sent):
                if time.monotonic() > end:
                    raise ConnectionError(f"datagram {n}: no answer")


def came_back(sock, sent):
    """Sends a datagram; whether its answer came within the socket's timeout. Those to earlier copies are passed over."""
    try:
        sock.send(sent)
        while (came := sock.recv(1 << 16))[:4] < sent[:4]:
            pass
    except socket.timeout:
        return False
    if came != sent:
        raise ConnectionError("a datagram came back with other bytes")
    return True


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        serve()
    elif len(sys.argv) in (4, 5) and sys.argv[1] in ("ask", "echo"):
        numbers = [int(word) for word in sys.argv[3:]]
        try:
            (ask if sys.argv[1] == "ask" else echo)(sys.argv[2], *numbers)
        except OSError as e:
            sys.exit(f"client: {e}")
    else:
        sys.exit(__doc__)
