"""Logs and metrics. Neither ever holds the text of a prompt or an answer."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable

import structlog
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coordinator.runtime import Runtime


def configure_logging(*, as_json: bool, level: int = logging.INFO) -> None:
    """Send structured logs to standard error."""
    renderer = (
        structlog.processors.JSONRenderer()
        if as_json
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


class RuntimeCollector(Collector):
    """The runtime's own numbers, read when asked for."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def collect(self) -> Iterable[Metric]:
        """Gauges and counters, in Prometheus' names."""
        runtime = self._runtime
        yield GaugeMetricFamily(
            "mlxnet_nodes_connected", "Nodes with a socket here.", len(runtime.fleet.channels)
        )
        yield GaugeMetricFamily(
            "mlxnet_attempts_live", "Attempts under way.", sum(runtime.jobs.attempts_by_node().values())
        )
        yield GaugeMetricFamily(
            "mlxnet_jobs_waiting", "Queued jobs that no host could take.", len(runtime.dispatcher.last_look)
        )
        yield CounterMetricFamily(
            "mlxnet_tokens_relayed", "Tokens relayed to submitters.", runtime.relay.tokens_relayed
        )
        yield CounterMetricFamily("mlxnet_jobs_ended", "Jobs ended and settled.", runtime.endings.jobs_ended)


def render_metrics(runtime: Runtime) -> bytes:
    """All metrics in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(RuntimeCollector(runtime))
    return generate_latest(registry)
