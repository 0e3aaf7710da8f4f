"""An S3 server in a process of its own, with conditional puts; ends when its input does.

Not a thread of the tests: Lance may hold the interpreter while it waits for an answer.
"""

from __future__ import annotations

import sys


def main() -> None:
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    print(server.get_host_and_port()[1], flush=True)
    sys.stdin.read()
    server.stop()


if __name__ == "__main__":
    main()
