"""An S3-compatible store in memory, for tests. It checks signatures with an independent implementation of AWS Signature Version 4,
so that client and server do not share errors, and it fails on demand like a store behind a bad network."""

import contextlib
import datetime
import email.utils
import hashlib
import hmac
import http.server
import json
import socketserver
import threading
import time
import urllib.parse
import xml.sax.saxutils

REGION = "eu-test-1"


class Denied(Exception):
    def __init__(self, status, code, message=""):
        self.status, self.code, self.message = status, code, message


def signature(secret, date, region, service, to_sign):
    key = ("AWS4" + secret).encode()
    for part in (date, region, service, "aws4_request", to_sign):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key.hex()


class Store(socketserver.ThreadingMixIn, http.server.HTTPServer):
    """`objects`: {"bucket/key": bytes}. `keys`: {access key: (secret, session token or "", Unix time when it expires or None)}.

    `fault(handler)` is called with each signed request. It may sleep, and returns None, a status (500, 503), "cut" (half of the
    reply), or "drop" (no reply)."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects, self.keys, self.uploads = {}, {"AKTEST": ("secret/+key", "", None)}, {}
        self.upload_paths = {}  # paths of all started uploads, by number
        self.part_etags = {}  # ETags of objects uploaded in parts
        self.fault = lambda handler: None
        self.rewrite = lambda status, body, headers: (status, body, headers)  # changes replies to ranged requests
        self.requests = []  # (method, path with query, status)
        self.ranges = 0  # bytes of objects in complete replies
        self.token = "container-token"  # token of the credentials endpoint
        self.lifetime = 3600  # lifetime in seconds of issued credentials
        self.issued = 0
        self.page = 1000  # keys per page of a listing
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def environment(self, **more):
        """Environment of a client with the store's key. `None` removes a variable."""
        values = {"AWS_ENDPOINT_URL": self.url, "AWS_REGION": REGION, "AWS_ACCESS_KEY_ID": "AKTEST", "AWS_SECRET_ACCESS_KEY": "secret/+key",
                  "AWS_EC2_METADATA_DISABLED": "true", "AWS_SHARED_CREDENTIALS_FILE": "/none", "AWS_CONFIG_FILE": "/none", **more}
        return {name: value for name, value in values.items() if value is not None}

    def etag_of(self, path):
        """ETag as in S3: the MD5 of one part, or of the parts' MD5s with their number. A test's object may have its own."""
        own = getattr(self.objects[path], "etag", None)
        return own or self.part_etags.get(path) or f"\"{hashlib.md5(self.objects[path]).hexdigest()}\""

    def put_tree(self, bucket, folder, prefix=""):
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.objects[f"{bucket}/{prefix}{path.relative_to(folder)}"] = path.read_bytes()

    def issue(self):
        """Issues new credentials at the container's endpoint."""
        with self.lock:
            self.issued += 1
            access, secret, token = f"ASIA{self.issued}", f"temporary/{self.issued}", f"session=={self.issued}"
            end = time.time() + self.lifetime
            self.keys[access] = (secret, token, end)
        text = datetime.datetime.fromtimestamp(end, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        return json.dumps({"Code": "Success", "AccessKeyId": access, "SecretAccessKey": secret, "Token": token, "Expiration": text})


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, body=b"", headers=None, fault=None):
        self.server.requests.append((self.command, self.path, status))
        headers = dict(headers or {})
        headers.setdefault("Content-Length", str(len(body)))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault == "cut":
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            self.close_connection = True
            self.connection.close()
            return
        self.wfile.write(body)

    def error(self, status, code, message=""):
        body = f"<?xml version=\"1.0\"?>\n<Error><Code>{code}</Code><Message>{xml.sax.saxutils.escape(message)}</Message></Error>"
        self.reply(status, body.encode(), {"Content-Type": "application/xml"})

    def check_signature(self, body):
        """https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html"""
        scheme, _, fields = self.headers.get("Authorization", "").partition(" ")
        if scheme != "AWS4-HMAC-SHA256":
            raise Denied(403, "AccessDenied", "the request is not signed")
        fields = dict(field.strip().split("=", 1) for field in fields.split(","))
        access, date, region, service, end = fields["Credential"].split("/")
        names = fields["SignedHeaders"].split(";")
        when = self.headers["x-amz-date"]
        if (service, end) != ("s3", "aws4_request") or not when.startswith(date):
            raise Denied(400, "AuthorizationHeaderMalformed")
        if region != REGION:
            raise Denied(400, "AuthorizationHeaderMalformed", f"the region '{region}' is wrong; expecting '{REGION}'")
        moment = datetime.datetime.strptime(when, "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.timezone.utc)
        if abs(moment.timestamp() - time.time()) > 900:
            raise Denied(403, "RequestTimeTooSkewed")
        missing = [name for name in self.headers if name.lower().startswith("x-amz-") and name.lower() not in names]
        if missing or "host" not in names or names != sorted(names):
            raise Denied(403, "AccessDenied", f"headers that must be signed: {missing}")
        if access not in self.server.keys:
            raise Denied(403, "InvalidAccessKeyId")
        secret, token, expires = self.server.keys[access]
        if self.headers.get("x-amz-security-token", "") != token:
            raise Denied(400, "InvalidToken")
        payload = hashlib.sha256(body).hexdigest()
        if self.headers["x-amz-content-sha256"] != payload:
            raise Denied(400, "XAmzContentSHA256Mismatch")
        path, _, query = self.path.partition("?")
        # The path must be sent in the encoding that was signed.
        if urllib.parse.quote(urllib.parse.unquote(path), safe="/-._~") != path:
            raise Denied(403, "SignatureDoesNotMatch", "the path is not encoded")
        pairs = [tuple(urllib.parse.unquote(part) for part in pair.partition("=")[::2]) for pair in query.split("&")] if query else []
        quoted = sorted((urllib.parse.quote(n, safe="-._~"), urllib.parse.quote(v, safe="-._~")) for n, v in pairs)
        headers = "".join(f"{name}:{' '.join(self.headers[name].split())}\n" for name in names)
        canonical = "\n".join([self.command, path, "&".join(f"{n}={v}" for n, v in quoted), headers, ";".join(names), payload])
        to_sign = "\n".join(["AWS4-HMAC-SHA256", when, f"{date}/{region}/s3/aws4_request", hashlib.sha256(canonical.encode()).hexdigest()])
        if not hmac.compare_digest(signature(secret, date, region, "s3", to_sign), fields["Signature"]):
            raise Denied(403, "SignatureDoesNotMatch")
        if expires is not None and time.time() > expires:
            raise Denied(400, "ExpiredToken", "The provided token has expired.")
        return dict(pairs)

    def handle_any(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.serve_credentials():
            return
        fault = self.server.fault(self)
        if fault == "drop":
            self.close_connection = True
            self.connection.close()
            return
        if isinstance(fault, int):
            self.error(fault, "SlowDown" if fault == 503 else "InternalError", "please reduce your request rate")
            return
        try:
            query = self.check_signature(body)
            bucket, _, key = urllib.parse.unquote(self.path.partition("?")[0]).lstrip("/").partition("/")
            self.serve(bucket, key, query, body, fault)
        except Denied as denied:
            self.error(denied.status, denied.code, denied.message)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any

    def serve_credentials(self):
        """The credentials endpoint of a container, and EC2's metadata service version 2."""
        server = self.server
        if self.path == "/container":
            if self.headers.get("Authorization") != server.token:
                self.reply(403, b"the token is wrong")
            else:
                self.reply(200, server.issue().encode())
        elif self.path == "/latest/api/token" and self.command == "PUT" and "X-aws-ec2-metadata-token-ttl-seconds" in self.headers:
            self.reply(200, b"imds-token")
        elif self.path.startswith("/latest/"):
            if self.headers.get("X-aws-ec2-metadata-token") != "imds-token":
                self.reply(401)
            elif self.path == "/latest/meta-data/iam/security-credentials/":
                self.reply(200, b"trainer-role")
            elif self.path == "/latest/meta-data/iam/security-credentials/trainer-role":
                self.reply(200, server.issue().encode())
            else:
                self.reply(404)
        else:
            return False
        return True

    def serve(self, bucket, key, query, body, fault):
        server, path = self.server, f"{bucket}/{key}"
        if bucket == "elsewhere":
            self.reply(301, b"<Error><Code>PermanentRedirect</Code></Error>", {"x-amz-bucket-region": "mars-1"})
        elif bucket == "closed":
            raise Denied(403, "AccessDenied", "no right to it")
        elif bucket == "missing":
            raise Denied(404, "NoSuchBucket")
        elif self.command in ("GET", "HEAD") and key:
            if path not in server.objects and "uploadId" not in query:
                raise Denied(404, "NoSuchKey")
            if "uploadId" in query:
                self.serve_parts(path, query)
            else:
                self.serve_object(path, fault)
        elif self.command == "GET" and "uploads" in query:
            self.serve_uploads(bucket, query)
        elif self.command == "GET":
            self.serve_list(bucket, query, fault)
        elif self.command == "PUT" and "uploadId" in query:
            parts = server.uploads.get(query["uploadId"])
            if parts is None:
                raise Denied(404, "NoSuchUpload")
            parts[int(query["partNumber"])] = body
            self.reply(200, headers={"ETag": f"\"{hashlib.md5(body).hexdigest()}\""})
        elif self.command == "PUT":
            server.part_etags.pop(path, None)
            server.objects[path] = body
            self.reply(200, headers={"ETag": f"\"{hashlib.md5(body).hexdigest()}\""})
        elif self.command == "POST" and "uploads" in query:
            with server.lock:
                upload = f"upload {len(server.upload_paths)}&+"
                server.uploads[upload] = {}
                server.upload_paths[upload] = path
            self.reply(200, f"<R><UploadId>{xml.sax.saxutils.escape(upload)}</UploadId></R>".encode())
        elif self.command == "POST":
            parts = server.uploads.pop(query["uploadId"], None)
            if parts is None:
                raise Denied(404, "NoSuchUpload")
            numbered = sorted(parts.items())
            if any(len(part) < 5 << 20 for _, part in numbered[:-1]):
                raise Denied(400, "EntityTooSmall")
            digests = b"".join(hashlib.md5(part).digest() for _, part in numbered)
            server.part_etags[path] = f"\"{hashlib.md5(digests).hexdigest()}-{len(numbered)}\""
            for number, part in numbered:
                if f"<PartNumber>{number}</PartNumber><ETag>\"{hashlib.md5(part).hexdigest()}\"</ETag>" not in body.decode():
                    raise Denied(400, "InvalidPart")
            server.objects[path] = b"".join(part for _, part in sorted(parts.items()))
            self.reply(200, b"<CompleteMultipartUploadResult/>", fault=fault)
        elif self.command == "DELETE" and "uploadId" in query:
            if server.uploads.pop(query["uploadId"], None) is None:
                raise Denied(404, "NoSuchUpload")
            self.reply(204)
        else:
            server.objects.pop(path, None)
            server.part_etags.pop(path, None)
            self.reply(204)

    def serve_parts(self, path, query):
        parts = self.server.uploads.get(query["uploadId"])
        if parts is None or self.server.upload_paths[query["uploadId"]] != path:
            raise Denied(404, "NoSuchUpload")
        numbers = sorted(n for n in list(parts) if n > int(query.get("part-number-marker", 0)))
        page = numbers[: self.server.page]
        entries = "".join(f"<Part><PartNumber>{n}</PartNumber><ETag>&quot;{hashlib.md5(parts[n]).hexdigest()}&quot;</ETag>"
                          f"<Size>{len(parts[n])}</Size></Part>" for n in page)
        more = len(page) < len(numbers)
        marker = f"<NextPartNumberMarker>{page[-1]}</NextPartNumberMarker>" if more else ""
        self.reply(200, f"<ListPartsResult><IsTruncated>{str(more).lower()}</IsTruncated>{marker}{entries}</ListPartsResult>".encode())

    def serve_uploads(self, bucket, query):
        prefix = f"{bucket}/{query.get('prefix', '')}"
        after = (query.get("key-marker", ""), query.get("upload-id-marker", ""))
        found = sorted((self.server.upload_paths[u].partition("/")[2], u) for u in list(self.server.uploads)
                       if self.server.upload_paths[u].startswith(prefix))
        found = [f for f in found if f > after]
        page = found[: self.server.page]
        quote = lambda key: urllib.parse.quote_plus(key, safe="/")
        entries = "".join(f"<Upload><Key>{quote(k)}</Key><UploadId>{xml.sax.saxutils.escape(u)}</UploadId></Upload>" for k, u in page)
        more = len(page) < len(found)
        markers = (f"<NextKeyMarker>{quote(page[-1][0])}</NextKeyMarker><NextUploadIdMarker>{xml.sax.saxutils.escape(page[-1][1])}"
                   "</NextUploadIdMarker>") if more else ""
        self.reply(200, f"<ListMultipartUploadsResult><IsTruncated>{str(more).lower()}</IsTruncated>{markers}{entries}"
                        "</ListMultipartUploadsResult>".encode())

    def serve_object(self, path, fault):
        data, etag = self.server.objects[path], self.server.etag_of(path)
        if self.headers.get("If-Match", etag) != etag:
            raise Denied(412, "PreconditionFailed")
        headers = {"ETag": etag, "Last-Modified": email.utils.formatdate(usegmt=True)}
        wanted = self.headers.get("Range")
        if wanted is None:
            self.reply(200, data if self.command == "GET" else b"", {**headers, "Content-Length": str(len(data))}, fault)
            return
        first, last = (int(n) for n in wanted.removeprefix("bytes=").split("-"))
        if first >= len(data):
            raise Denied(416, "InvalidRange")
        last = min(last, len(data) - 1)
        if fault != "cut":
            with self.server.lock:
                self.server.ranges += last - first + 1
        status, body, headers = self.server.rewrite(206, data[first : last + 1], {**headers, "Content-Range": f"bytes {first}-{last}/{len(data)}"})
        with contextlib.suppress(ConnectionError):  # the client may close the connection at unexpected data
            self.reply(status, body, headers, fault)

    def serve_list(self, bucket, query, fault):
        if query.get("list-type") != "2" or query.get("encoding-type") != "url":
            raise Denied(400, "InvalidRequest")
        after = query.get("continuation-token", "")
        prefix = f"{bucket}/{query.get('prefix', '')}"
        keys = {k for k in list(self.server.objects) if k.startswith(prefix)}
        if query.get("delimiter") == "/":
            keys = {k if "/" not in k[len(prefix):] else prefix + k[len(prefix):].partition("/")[0] + "/" for k in keys}
        keys = sorted(k for k in keys if k > after)
        page = keys[: self.server.page]
        quote = lambda k: urllib.parse.quote_plus(k.partition("/")[2], safe="/")
        folders = "delimiter" in query
        entries = "".join(f"<CommonPrefixes><Prefix>{quote(k)}</Prefix></CommonPrefixes>" if folders and k.endswith("/") else
                          f"<Contents><Key>{quote(k)}</Key><Size>{len(self.server.objects[k])}</Size>"
                          f"<ETag>{self.server.etag_of(k).replace(chr(34), '&quot;')}</ETag></Contents>" for k in page)
        more = len(page) < len(keys)
        token = f"<NextContinuationToken>{xml.sax.saxutils.escape(page[-1])}</NextContinuationToken>" if more else ""
        body = f"<?xml version=\"1.0\"?><ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{token}{entries}</ListBucketResult>"
        self.reply(200, body.encode(), {"Content-Type": "application/xml"}, fault)


__all__ = ["Store", "REGION"]
