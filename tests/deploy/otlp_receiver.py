"""A receiver of OTLP metrics over HTTP, which decodes them by the published schema. Needs the Python environment of
deploy/install-deps.sh --tests.

    otlp_receiver.py DIRECTORY [PORT]

Writes its port to DIRECTORY/port, and per post a line to DIRECTORY/posts.jsonl: path, type, time, the request as JSON, and the
names of messages with fields that the schema does not have."""

import http.server
import json
import pathlib
import sys
import time

from google.protobuf.json_format import MessageToDict
from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest, ExportMetricsServiceResponse


def unknown_fields(message):
    if len(UnknownFieldSet(message)) > 0:
        yield message.DESCRIPTOR.full_name
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in [value] if not field.is_repeated else value:
                yield from unknown_fields(inner)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        request = ExportMetricsServiceRequest.FromString(body)
        line = {"path": self.path, "type": self.headers["Content-Type"], "at": time.time(), "bytes": len(body),
                "unknown": sorted(set(unknown_fields(request))), "request": MessageToDict(request)}
        with open(directory / "posts.jsonl", "a") as posts:
            posts.write(json.dumps(line) + "\n")
        reply = ExportMetricsServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *_):
        pass


directory = pathlib.Path(sys.argv[1])
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[2]) if len(sys.argv) > 2 else 0), Handler)
(directory / "new").write_text(str(server.server_address[1]))
(directory / "new").rename(directory / "port")
server.serve_forever()
