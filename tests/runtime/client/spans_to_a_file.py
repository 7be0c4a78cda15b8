"""A configurator of OpenTelemetry, as an installed package has one: it writes a line for each span that ends."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult


class _ToAFile(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with Path(os.environ["QSTATE_TEST_SPANS"]).open("a") as file:
            for span in spans:
                file.write(f"{span.name.removeprefix('qstate ')}/{span.context.trace_id:032x}\n")
        return SpanExportResult.SUCCESS


class Configurator:
    """What the entry point names."""

    def configure(self) -> None:
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(_ToAFile()))
        trace.set_tracer_provider(provider)
