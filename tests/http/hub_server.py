"""A hub for tests: it speaks the protocol of huggingface.co as huggingface_hub 2.4.0 uses it (hf_api.py, file_download.py), from
repositories in memory, and breaks it where a test asks for that.

Large files (".safetensors", ".gguf") are LFS files: the hub redirects them to a second server, the storage, which has other
origins and must not see a token."""
import hashlib
import json
import re
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LFS = (".safetensors", ".gguf", ".bin")


def blob_id(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Repo:
    def __init__(self, files, **about):
        self.files = files  # {name: bytes}
        self.commit = hashlib.sha1(repr(sorted((k, hashlib.sha1(v).hexdigest()) for k, v in files.items())).encode()).hexdigest()
        self.refs = {"main": self.commit}
        self.gated = about.get("gated", False)
        self.private = about.get("private", False)

    def describe(self, name):
        data = self.files[name]
        out = {"rfilename": name, "size": len(data), "blobId": blob_id(data)}
        if name.endswith(LFS):
            out["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
        return out

    def etag(self, name):
        about = self.describe(name)
        return about["lfs"]["sha256"] if "lfs" in about else about["blobId"]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.send_header("Content-Length", len(body))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status, code=None, message=None):
        extra = {**({"X_Error_Code": code} if code else {}), **({"X_Error_Message": message} if message else {})}
        self.answer(status, json.dumps({"error": message or code}).encode(), **extra)

    def file(self, data, etag, **headers):
        """The bytes, or a range of them; with the faults of the test."""
        hub, begin, status = self.server.hub, 0, 200
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        hub.ranges.append(self.headers.get("Range"))
        if asked and not hub.ignore_ranges:
            begin, status = int(asked.group(1)), 206
            if begin >= len(data):
                return self.answer(416)
            headers["Content_Range"] = f"bytes {begin + hub.range_shift}-{len(data) - 1}/{len(data)}"
        self.send_response(status)
        for name, value in {"ETag": f'"{etag}"', "Accept-Ranges": "bytes", **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        data = data[begin:]
        self.send_header("Content-Length", len(data))
        self.end_headers()
        if self.command == "HEAD":
            return
        if hub.slow:
            hub.sending.set()
            for i in range(0, len(data), 65536):
                self.wfile.write(data[i:i + 65536])
                time.sleep(hub.slow)
                if hub.closing.is_set():
                    return
        elif hub.break_after and len(data) > hub.break_after and hub.breaks > 0:
            hub.breaks -= 1
            self.wfile.write(data[:hub.break_after])
            self.wfile.flush()
            self.close_connection = True
        else:
            self.wfile.write(data)


class HubHandler(Handler):
    def authorised(self, repo):
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        return not (repo.gated or repo.private) or token == self.server.hub.token

    def find(self, name, revision):
        hub = self.server.hub
        repo = hub.repos.get(name)
        token = self.headers.get("Authorization")
        if token and token != f"Bearer {hub.token}":
            return self.refuse(401, message="Invalid credentials in Authorization header")
        if not repo or (repo.private and not self.authorised(repo)):
            return self.refuse(401, "RepoNotFound" if token else None, "Repository not found" if token else "Invalid username or password." if hub.rude else None)
        commit = repo.refs.get(revision, revision if revision == repo.commit else None)
        if not commit:
            return self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return repo

    def do_GET(self):
        hub = self.server.hub
        path = urllib.parse.urlsplit(self.path).path
        hub.requests.append((self.command, self.path, self.headers.get("Authorization")))
        if hub.failing > 0:
            hub.failing -= 1
            return self.answer(hub.fail_with, b"", **({"Retry_After": hub.retry_after} if hub.retry_after else {}))
        if hub.raw is not None and path.startswith("/api/"):
            return self.answer(200, hub.raw, Content_Type="application/json")
        api = re.fullmatch(r"/api/(?:models/)?((?:datasets/)?[^/]+/[^/]+)/(revision|tree)/([^/]+)", path)
        if api:
            repo = self.find(api.group(1), urllib.parse.unquote(api.group(3)))
            return repo and self.listing(repo, api.group(1), api.group(2))
        file = re.fullmatch(r"/((?:datasets/)?[^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if not file:
            return self.refuse(404)
        repo, name = self.find(file.group(1), urllib.parse.unquote(file.group(2))), urllib.parse.unquote(file.group(3))
        if not repo:
            return None
        if not self.authorised(repo):
            return self.refuse(403 if self.headers.get("Authorization") else 401, "GatedRepo", "Access to model is restricted")
        if name not in repo.files:
            return self.refuse(404, "EntryNotFound", "Entry not found")
        headers = {"X_Repo_Commit": repo.commit}
        if not name.endswith(LFS):
            return self.file(hub.served(name, repo.files[name]), repo.etag(name), **headers)
        where = f"{hub.storage_url}/signed/{file.group(1)}/{urllib.parse.quote(name)}?X-Signature=secret"
        return self.answer(302, b"", Location=where, X_Linked_Etag=f'"{repo.etag(name)}"', X_Linked_Size=len(repo.files[name]), ETag='"of-the-redirect"', **headers)

    do_HEAD = do_GET

    def listing(self, repo, name, kind):
        files = [repo.describe(f) for f in sorted(repo.files)]
        hub = self.server.hub
        if kind == "tree":
            out = [{"type": "file", "path": f["rfilename"], "oid": f["blobId"], "size": f["size"],
                    **({"lfs": {"oid": f["lfs"]["sha256"], "size": f["size"], "pointerSize": 130}} if "lfs" in f else {})} for f in files]
        else:
            if "blobs=" not in self.path or hub.no_blobs:
                files = [{"rfilename": f["rfilename"]} for f in files]
            out = {"_id": "1", "id": name, "modelId": name, "sha": repo.commit, "private": repo.private, "gated": "auto" if repo.gated else False,
                   "tags": [], "downloads": 1, "likes": 1, "siblings": hub.change_listing(files)}
        self.answer(200, json.dumps(out).encode(), Content_Type="application/json")


class StorageHandler(Handler):
    def do_GET(self):
        hub = self.server.hub
        path = urllib.parse.urlsplit(self.path).path
        hub.storage_requests.append((self.command, self.path, self.headers.get("Authorization")))
        if hub.storage_failing > 0:
            hub.storage_failing -= 1
            return self.answer(hub.storage_fail_with)
        org, name, file = path.removeprefix("/signed/").split("/", 2)
        data = hub.repos[f"{org}/{name}"].files[urllib.parse.unquote(file)]
        return self.file(hub.served(file, data), "etag-of-the-storage")

    do_HEAD = do_GET


class Hub:
    """Two servers; attributes are what is broken."""

    def __init__(self):
        self.repos, self.token = {}, "hf_right"
        self.requests, self.storage_requests, self.ranges = [], [], []
        self.failing = self.storage_failing = self.breaks = self.break_after = self.retry_after = self.range_shift = 0
        self.fail_with = self.storage_fail_with = 503
        self.slow, self.raw, self.ignore_ranges, self.no_blobs, self.rude = 0, None, False, False, True
        self.sending, self.closing = threading.Event(), threading.Event()
        self.served = lambda name, data: data
        self.change_listing = lambda files: files
        self.servers = [self._serve(HubHandler), self._serve(StorageHandler)]
        self.url, self.storage_url = (f"http://127.0.0.1:{s.server_port}" for s in self.servers)

    def _serve(self, handler):
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        server.handle_error = lambda *_: None  # clients that are killed
        server.hub = self
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return server

    def close(self):
        self.closing.set()
        for server in self.servers:
            server.shutdown()
            server.server_close()
