"""moto's S3 with authentication, behind a proxy that delays, truncates, answers 500 and 503, and expires credentials.

  moto_store.py LIFETIME

Prints one JSON line {url, key, secret, token} and serves until its standard input ends. Paths of the proxy below `/-/`:
  container   temporary credentials by AssumeRole, good for LIFETIME seconds, for the bearer of `token`
  keys        {object: {size, sha256, parts}} of the bucket `safe`, read by boto3 past the proxy
  object/KEY  its bytes, read by boto3
  counts      {fault: how often}
  faults/on, faults/off
Needs the tests' Python environment, which has moto and boto3."""

import datetime
import hashlib
import http.client
import http.server
import json
import os
import socketserver
import sys
import threading
import time
import urllib.parse

os.environ["INITIAL_NO_AUTH_ACTION_COUNT"] = "5"  # the calls that create the user and the role
import boto3  # noqa: E402
from moto.server import ThreadedMotoServer  # noqa: E402

REGION, BUCKET = "us-east-1", "safe"
EVERY = 17  # requests between two faults of one kind
TURNS = {1: 503, 4: "cut", 7: 500, 9: "delay", 11: "drop", 14: "expire"}


class Proxy(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port, client_of, lifetime):
        super().__init__(("127.0.0.1", 0), Handler)
        self.port, self.client_of, self.lifetime = port, client_of, lifetime
        self.lock = threading.Lock()
        self.turn, self.faulty, self.counts, self.issued = 0, True, {}, {}

    def count(self, what):
        with self.lock:
            self.counts[what] = self.counts.get(what, 0) + 1

    def next_fault(self, access):
        with self.lock:
            self.turn += 1
            fault = TURNS.get(self.turn % EVERY) if self.faulty else None
            if access in self.issued and time.time() > self.issued[access]:
                return "expired"
            if fault == "expire":  # these credentials are now invalid
                self.issued[access] = 0
                return "expired" if access.startswith("ASIA") else None
            return fault


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, body, kind="application/xml"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def fail(self, status, code):
        self.reply(status, f"<?xml version=\"1.0\"?>\n<Error><Code>{code}</Code><Message>by the proxy</Message></Error>".encode())

    def drop(self):
        self.close_connection = True
        self.connection.close()

    def own(self, path):
        server = self.server
        s3 = server.client_of("s3")
        if path == "container":
            if self.headers.get("Authorization") != "moto-token":
                return self.fail(403, "AccessDenied")
            given = server.client_of("sts").assume_role(RoleArn=server.role, RoleSessionName="trainer")["Credentials"]
            end = time.time() + server.lifetime
            with server.lock:
                server.issued[given["AccessKeyId"]] = end
            server.count("issued")
            text = datetime.datetime.fromtimestamp(end, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
            answer = {"AccessKeyId": given["AccessKeyId"], "SecretAccessKey": given["SecretAccessKey"], "Token": given["SessionToken"], "Expiration": text}
        elif path == "keys":
            answer = {}
            for page in s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET):
                for item in page.get("Contents", []):
                    body = s3.get_object(Bucket=BUCKET, Key=item["Key"])["Body"].read()
                    _, _, parts = item["ETag"].strip('"').partition("-")
                    answer[item["Key"]] = {"size": len(body), "sha256": hashlib.sha256(body).hexdigest(), "parts": int(parts or 0)}
        elif path.startswith("object/"):
            return self.reply(200, s3.get_object(Bucket=BUCKET, Key=path[len("object/"):])["Body"].read(), "application/octet-stream")
        elif path == "uploads":
            answer = [u["Key"] for u in s3.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])]
        elif path in ("faults/on", "faults/off"):
            server.faulty = path == "faults/on"
            answer = server.faulty
        else:
            answer = dict(server.counts)
        self.reply(200, json.dumps(answer).encode(), "application/json")

    def handle_any(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path.startswith("/-/"):
            return self.own(urllib.parse.unquote(self.path[3:]))
        credential = self.headers.get("Authorization", "").partition("Credential=")[2]
        fault = self.server.next_fault(credential.partition("/")[0])
        if fault is not None:
            self.server.count(str(fault))
        if fault == "delay":
            time.sleep(0.3)
        if fault == "drop":
            return self.drop()
        if fault == "expired":
            return self.fail(400, "ExpiredToken")
        if isinstance(fault, int):
            return self.fail(fault, "SlowDown" if fault == 503 else "InternalError")
        upstream = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        try:
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                upstream.putheader(name, value)
            upstream.endheaders(body)
            answer = upstream.getresponse()
            data = answer.read()
        finally:
            upstream.close()
        self.server.count("passed" if answer.status < 400 else f"store {answer.status}")
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "content-length", "server", "date"):
                self.send_header(name, value)
        self.send_header("Content-Length", answer.getheader("Content-Length", "0") if self.command == "HEAD" else str(len(data)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault == "cut":
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            return self.drop()
        self.wfile.write(data)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any


def main():
    moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    moto.start()
    _, port = moto.get_host_and_port()
    url = f"http://127.0.0.1:{port}"

    def client(service, key="none", secret="none"):
        return boto3.client(service, endpoint_url=url, region_name=REGION, aws_access_key_id=key, aws_secret_access_key=secret)

    iam = client("iam")
    rights = json.dumps({"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": ["s3:*", "sts:*"], "Resource": "*"}]})
    trust = json.dumps({"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sts:AssumeRole"}]})
    iam.create_user(UserName="trainer")
    iam.put_user_policy(UserName="trainer", PolicyName="all", PolicyDocument=rights)
    role = iam.create_role(RoleName="trainer", AssumeRolePolicyDocument=trust)["Role"]["Arn"]
    iam.put_role_policy(RoleName="trainer", PolicyName="all", PolicyDocument=rights)
    key = iam.create_access_key(UserName="trainer")["AccessKey"]
    proxy = Proxy(port, lambda service: client(service, key["AccessKeyId"], key["SecretAccessKey"]), float(sys.argv[1]))
    proxy.role = role
    proxy.client_of("s3").create_bucket(Bucket=BUCKET)
    threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    print(json.dumps({"url": f"http://127.0.0.1:{proxy.server_address[1]}", "key": key["AccessKeyId"], "secret": key["SecretAccessKey"], "token": "moto-token"}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
