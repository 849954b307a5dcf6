"""A shard that is not the first: `python -m sojourn_runtime.model.shards.follower SOCKET MEMORY`.

It does what the first shard tells it, in order, and ends when that one does. It never touches the
store, and has no clients.
"""

import logging
import signal
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import NoReturn

from sojourn_runtime.engine.moves import Copy, Fetch, Stash
from sojourn_runtime.model.errors import ModelError, ShardLost
from sojourn_runtime.model.quantization import read_plan
from sojourn_runtime.model.runner import make_runner
from sojourn_runtime.model.shards.orders import Host, Opening, Part, Pass, Settle
from sojourn_runtime.model.shards.split import Shard, split
from sojourn_runtime.model.weights import open_weights

log = logging.getLogger("sojourn_runtime.follower")


def follow(connection: Connection, *, memory: int) -> NoReturn:
    """Until the first shard is gone: EOFError, or ShardLost from the middle of a pass."""
    opening: Opening = connection.recv()
    from sojourn_runtime.model.shards.group import ProcessGroup  # noqa: PLC0415 - imports torch

    weights = open_weights(
        opening.uri,
        cache_dir=opening.cache_dir,
        digest=opening.digest,
        plan=read_plan(opening.quantization),
    )
    connection.send(Settle())
    group = ProcessGroup(
        number=opening.number,
        shards=opening.shards,
        port=opening.port,
        device=opening.device,
    )
    shard = Shard(opening.number, split(weights.config, opening.shards), group)
    runner = make_runner(
        weights,
        device=opening.device,
        num_blocks=opening.num_blocks,
        threads=opening.threads,
        shard=shard,
    )
    part = Part(runner, shard.kv_heads, memory=memory)
    heads = shard.kv_heads
    log.info("shard %d has key heads %d to %d", opening.number, heads.start, heads.stop - 1)
    while True:
        match connection.recv():
            case Pass(segments):
                runner.forward(segments)
            case Host(slots):
                part.map(slots)
            case Stash() | Fetch() | Copy() as move:
                part.carry_out(move)
            case Settle():
                connection.send(Settle())


def main() -> int:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a pause is the first shard's to carry out
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    socket, memory = map(int, sys.argv[1:])
    connection = Connection(socket)
    try:
        follow(connection, memory=memory)
    except (EOFError, ConnectionError):
        return 0
    except ShardLost as error:
        log.info("%s", error)  # who is to blame is for the first shard to say
        return 1
    except ModelError as error:
        with suppress(OSError):  # the first shard may be gone
            connection.send(error)
        return 1
    except Exception:
        log.exception("the shard failed")
        return 1


if __name__ == "__main__":
    sys.exit(main())
