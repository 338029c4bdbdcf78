"""`python -m kbroker.testing`: brokers for tests in any language.

It prints one line of JSON with the bootstrap address once they serve, and ends when its standard input does, which a
test's end brings about whichever way it comes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

from kbroker.faults.file import read_faults
from kbroker.testing import broker, cluster
from kbroker.testing._broker import Broker
from kbroker.usage import UsageError


def main(words: Sequence[str] | None = None) -> int:
    """Start, say where, wait. Returns: the exit code."""
    parser = argparse.ArgumentParser(prog="python -m kbroker.testing", description=__doc__)
    parser.add_argument("--brokers", type=int, default=1, metavar="N", help="how many (default: 1)")
    parser.add_argument("--port", type=int, default=0, help="of a single broker (default: any free one)")
    parser.add_argument("--data", metavar="DIR", help="where to keep data (default: memory, gone at the end)")
    parser.add_argument("--faults", metavar="FILE", help="what they are to do wrong: docs/testing.md")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting", dest="settings")
    parser.add_argument("--security", default="plaintext", help="ssl, sasl_plaintext or sasl_ssl, of a single broker")
    given = parser.parse_args(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        _serve(given)
    except (UsageError, OSError) as error:
        print(f"kbroker.testing: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    return 0


def _serve(given: argparse.Namespace) -> None:
    settings: dict[str, object] = {}
    for pair in given.settings:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"--set {pair}: write --set key=value")
        settings[name] = value
    if given.brokers > 1 and given.port:
        raise UsageError("--port is for a single broker: leave it out, or write --brokers 1")
    alone = given.brokers == 1
    if not alone and given.security != "plaintext":
        raise UsageError("--security is for a single broker: leave it out, or write --brokers 1")
    made = (
        broker(data=given.data, port=given.port, security=given.security, settings=settings)
        if alone
        else cluster(given.brokers, data=given.data, settings=settings)
    )
    brokers = [made] if isinstance(made, Broker) else made.brokers
    if given.faults:
        with open(given.faults, encoding="utf-8", errors="replace") as file:  # what is no text is no TOML
            plan = read_faults(file.read(), given.faults)
        for each in brokers:
            each.faults.share(plan.faults)
            if plan.disk is not None:
                plan.disk.put_on(each.disk)
    with made:
        line: dict[str, object] = {"bootstrap": made.bootstrap, "brokers": [each.bootstrap for each in brokers]}
        if given.security != "plaintext":
            line["clients"] = made.clients.java()
        with suppress(BrokenPipeError):
            print(json.dumps(line), flush=True)
        while sys.stdin is not None and os.read(sys.stdin.fileno(), 4096):  # None: it was closed before we began
            pass


if __name__ == "__main__":
    sys.exit(main())
