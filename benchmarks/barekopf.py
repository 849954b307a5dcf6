"""The peer of a restart: kopf lists the kinds that the operator watches, and nothing else happens.

Ends when each of the objects that it was told to expect was seen: `barekopf.py PLURAL=COUNT ...`.
"""

import asyncio
import logging
import sys
import threading
from typing import Any

import kopf
from sojourn_operator import kinds
from sojourn_operator.seen.cache import Cache

logging.disable(logging.INFO)


def main(expected: dict[str, int]) -> None:
    over = threading.Event()
    left = dict(expected)
    if unknown := expected.keys() - {table.kind.plural for table in Cache(lambda: None).tables()}:
        raise SystemExit(f"the operator watches no {unknown}")
    registry, settings = kopf.OperatorRegistry(), kopf.OperatorSettings()
    settings.posting.enabled = False
    kopf.on.login(registry=registry)(kopf.login_with_kubeconfig)

    def watch(kind: kinds.Kind) -> None:
        async def seen(**_: Any) -> None:
            left[kind.plural] -= 1
            if not any(count > 0 for count in left.values()):
                over.set()

        kopf.on.event(kind.group, kind.version, kind.plural, registry=registry, id=kind.plural)(
            seen
        )

    for table in Cache(lambda: None).tables():
        left.setdefault(table.kind.plural, 0)
        watch(table.kind)
        if table.label_selector:
            settings.watching.label_selectors[table.kind.plural] = table.label_selector
    asyncio.run(
        kopf.operator(
            registry=registry,
            settings=settings,
            standalone=True,
            clusterwide=True,
            identity="bare",
            stop_flag=over,
        )
    )


if __name__ == "__main__":
    main({plural: int(count) for plural, count in (one.split("=") for one in sys.argv[1:])})
