"""What a server counts and measures, for Prometheus."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from dragoman.serving.batching import BatchKind
from dragoman.serving.served_models import ServedModels

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_LINES = (1, 2, 4, 8, 16, 32, 64)


class ServerMetrics:
    """Figures of one server; texts, keys and addresses of clients are not part of them."""

    def __init__(self, models: ServedModels) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter("dragoman_requests", "Answered requests.", ("path", "status"), registry=registry)
        self.seconds = Histogram(
            "dragoman_request_seconds",
            "Time from the first byte of a request to the end of its answer.",
            ("path",),
            buckets=_SECONDS,
            registry=registry,
        )
        self._waiting = Gauge("dragoman_waiting_lines", "Lines that no batch has taken yet.", registry=registry)
        self._batch_lines = Histogram(
            "dragoman_batch_lines", "Lines of a batch.", ("languages",), buckets=_LINES, registry=registry
        )
        self._batch_seconds = Histogram(
            "dragoman_batch_seconds", "Time to translate a batch.", ("languages",), buckets=_SECONDS, registry=registry
        )
        self.lines = Counter("dragoman_translated_lines", "Translated lines.", ("languages",), registry=registry)
        registry.register(_TokenCollector(models))

    def add_batch(self, kind: BatchKind, num_lines: int, seconds: float) -> None:
        """Counts a translated batch."""
        languages = kind.model.languages
        self._batch_lines.labels(languages).observe(num_lines)
        self._batch_seconds.labels(languages).observe(seconds)
        self.lines.labels(languages).inc(num_lines)

    def watch_queue(self, num_waiting: Callable[[], int]) -> None:
        """Asks for the number of waiting lines whenever the figures are read."""
        self._waiting.set_function(num_waiting)

    def text(self) -> bytes:
        """Returns all figures in the text format of Prometheus."""
        return generate_latest(self._registry)


class _TokenCollector(Collector):
    """Reads the tokens that the models have counted themselves."""

    def __init__(self, models: ServedModels) -> None:
        self._models = models

    def collect(self) -> Iterator[CounterMetricFamily]:
        tokens = CounterMetricFamily("dragoman_tokens", "Subwords and EOS.", labels=("languages", "side"))
        for model in self._models.models:
            tokens.add_metric((model.languages, "source"), model.tokens.num_read)
            tokens.add_metric((model.languages, "target"), model.tokens.num_written)
        yield tokens
