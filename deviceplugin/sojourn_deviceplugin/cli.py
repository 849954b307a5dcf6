"""Command line: `sojourn-deviceplugin run --config FILE --node-name NAME`, or with `--check`."""

import argparse
import logging
import os
import signal
import sys
from pathlib import Path

from sojourn_api.access import Access, NotInPodError, in_cluster

from sojourn_deviceplugin import check, logs, web
from sojourn_deviceplugin.alone import NotAloneError, alone
from sojourn_deviceplugin.config import Config, ConfigError
from sojourn_deviceplugin.core import BOOT_ID
from sojourn_deviceplugin.nvml import Nvml
from sojourn_deviceplugin.plugin import Plugin
from sojourn_deviceplugin.registry import Registry, RegistryError
from sojourn_deviceplugin.settings import Settings

log = logging.getLogger(__name__)


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="sojourn-deviceplugin", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="serve the kubelet until stopped")
    run.add_argument("--config", type=Path, help="YAML file of settings; all have defaults")
    run.add_argument("--node-name", default=os.environ.get("NODE_NAME", ""))
    run.add_argument("--check", action="store_true", help="print what would be offered, and end")
    run.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    run.add_argument("--api-server", help="URL of an API server without authentication (tests)")
    return parser.parse_args(arguments)


def _access(options: argparse.Namespace, config: Config) -> Access | None:
    if not config.publish:
        return None
    return Access(url=options.api_server) if options.api_server else in_cluster()


def main(arguments: list[str] | None = None) -> int:
    """Run; the exit status is 2 for wrong settings."""
    options = _arguments(arguments)
    logs.configure(options.log_level)
    try:
        settings = Settings(options.config)
        if options.check:
            return _check(settings.config)
        return _run(settings, options)
    except (ConfigError, NotAloneError, NotInPodError, RegistryError) as error:
        log.error("cannot run", extra={"error": str(error)})  # noqa: TRY400 - the text says it
        return 2


def _check(config: Config) -> int:
    known = Registry(config.state_dir).load()
    facts = Nvml().read(known)
    for line in check.report(facts, known, config, boot=BOOT_ID.read_text().strip()):
        sys.stdout.write(line + "\n")
    return 0


def _run(settings: Settings, options: argparse.Namespace) -> int:
    while True:
        for number in (signal.SIGTERM, signal.SIGINT):  # process 1 would not end without
            signal.signal(number, lambda *_: sys.exit(0))
        with alone(settings.config.state_dir):
            if _serve(settings, options):
                return 0
        log.info("settings changed, starting anew")


def _serve(settings: Settings, options: argparse.Namespace) -> bool:
    """Serve with the present settings; False when they have changed."""
    access = _access(options, settings.config)
    if access is not None and not options.node_name:
        raise ConfigError("--node-name: is needed to write the GPUNode (or set NODE_NAME)")
    plugin = Plugin(settings.config, node_name=options.node_name, access=access)
    port = settings.config.metrics_port
    try:
        server = web.serve(
            port,
            plugin.metrics.registry,
            alive=plugin.registrar.is_alive,
            ready=lambda: plugin.ready,
        )
    except OSError as error:
        raise ConfigError(f"metricsPort: {port} cannot be listened on: {error}") from error
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: plugin.end())
    try:
        plugin.start()
        log.info("started", extra={"node": options.node_name, "port": server.server_port})
        return plugin.run(until=settings.changed)
    finally:  # else an error leaves a process that serves the kubelet what was true before
        plugin.stop()
        server.shutdown()
        server.server_close()
