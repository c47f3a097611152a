"""/v1/files: uploads of every shape, limits, and what is on the disk."""
import json
import os
import socket
import sqlite3
import threading

import pytest
import requests
from conftest import wait_for

BOUNDARY = "x-boundary-x"


@pytest.fixture(scope="module")
def files(start):
    with start() as s:
        yield s


def upload(server, content=b'{"text":"hello there"}\n', name="a.jsonl", purpose="fine-tune", **kw):
    return requests.post(server.url + "/v1/files", files={"file": (name, content)}, data={"purpose": purpose}, timeout=300, **kw)


def raw(server, body, content_type=f"multipart/form-data; boundary={BOUNDARY}", **headers):
    return requests.post(server.url + "/v1/files", data=body, headers={"Content-Type": content_type, **headers}, timeout=300)


def part(name, content, filename=None):
    disposition = f'form-data; name="{name}"' + (f'; filename="{filename}"' if filename is not None else "")
    return f"--{BOUNDARY}\r\nContent-Disposition: {disposition}\r\n\r\n".encode() + content + b"\r\n"


END = f"--{BOUNDARY}--\r\n".encode()


def on_disk(server):
    folder = server.data / "files"
    return sorted(p.name for p in folder.iterdir()) if folder.exists() else []


@pytest.mark.smoke
def test_upload_get_content_delete(files):
    content = os.urandom(3_000_000) + b"\r\n--" + BOUNDARY.encode() + b"\r\n--"
    answer = upload(files, content, "some where/my data.jsonl")
    assert answer.status_code == 200, answer.text
    made = answer.json()
    assert made["object"] == "file" and made["bytes"] == len(content) and made["filename"] == "my data.jsonl"
    assert made["purpose"] == "fine-tune" and made["status"] == "processed" and made["id"].startswith("file-")
    assert (files.data / "files" / made["id"]).read_bytes() == content
    assert files.get(f"/v1/files/{made['id']}").json() == made
    assert files.get(f"/v1/files/{made['id']}/content").content == content
    gone = requests.delete(f"{files.url}/v1/files/{made['id']}", timeout=300).json()
    assert gone == {"id": made["id"], "object": "file", "deleted": True}
    assert made["id"] not in on_disk(files) and files.get(f"/v1/files/{made['id']}").status_code == 404


def test_list_order_paging_purpose(files):
    ids = [upload(files, f"{i}".encode(), f"{i}.jsonl", "batch" if i == 1 else "fine-tune").json()["id"] for i in range(4)]
    listed = [f["id"] for f in files.get("/v1/files").json()["data"]]
    assert listed[:4] == ids[::-1]
    page = files.get("/v1/files?limit=2").json()
    assert page["has_more"] and [page["first_id"], page["last_id"]] == [ids[3], ids[2]]
    page = files.get(f"/v1/files?limit=2&after={ids[2]}").json()
    assert [f["id"] for f in page["data"]] == [ids[1], ids[0]]
    assert [f["id"] for f in files.get(f"/v1/files?order=asc&after={ids[2]}").json()["data"]] == [ids[3]]
    assert [f["id"] for f in files.get("/v1/files?purpose=batch").json()["data"]] == [ids[1]]
    assert files.get("/v1/files?limit=0").status_code == 400 and files.get("/v1/files?after=nope").status_code == 400
    for i in ids:
        requests.delete(f"{files.url}/v1/files/{i}", timeout=300)


def test_expires_after(files):
    body = part("purpose", b"fine-tune") + part("expires_after[anchor]", b"created_at") + part("expires_after[seconds]", b"3600") + part("file", b"x", "x")
    made = raw(files, body + END).json()
    assert made["expires_at"] == made["created_at"] + 3600


def test_fields_after_the_file_and_a_preamble(files):
    body = b"a preamble\r\n" + part("file", b"content", "x.jsonl") + part("unknown", b"is skipped") + part("purpose", b"evals") + END + b"an epilogue"
    assert raw(files, body).json()["bytes"] == 7


@pytest.mark.parametrize("name, wanted", [("..", ".."), ("../../etc/passwd", "passwd"), ("C:\\\\data\\\\x.jsonl", "x.jsonl"), ("", "upload"), ("ü☃.jsonl", "ü☃.jsonl")])
def test_names_are_only_names(files, name, wanted):
    made = raw(files, part("purpose", b"fine-tune") + f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\nx\r\n'.encode() + END).json()
    assert made["filename"] == wanted and (files.data / "files" / made["id"]).exists()


BAD = [
    (b"", "expected multipart", "a"),
    (END, "no part named file", None),
    (part("file", b"x", "x") + END, "no purpose", None),
    (part("purpose", b"fine-tune") + END, "no part named file", None),
    (part("purpose", b"world domination") + part("file", b"x", "x") + END, "purpose: must be one of", None),
    (part("purpose", b"fine-tune") + part("file", b"", "x") + END, "the file is empty", None),
    (part("purpose", b"fine-tune") + part("file", b"x", "x") + part("file", b"y", "y") + END, "more than one part named file", None),
    (part("purpose", b"fine-tune") + part("file", b"x", "x"), "ends before its last delimiter", None),
    (part("purpose", b"f" * 300) + part("file", b"x", "x") + END, "too long", None),
    (f"--{BOUNDARY}\r\nContent-Type: text/plain\r\n\r\nx\r\n".encode() + END, "without a good name", None),
    (f"--{BOUNDARY}\r\n\r\nx\r\n".encode() + END, "without headers", None),
    (f"--{BOUNDARY}\r\nA: ".encode() + b"b" * 5000, "headers are too long", None),
    (f"--{BOUNDARY}X\r\n".encode() + END, "followed by neither", None),
    (b"".join(part(f"p{i}", b"x") for i in range(40)) + END, "too many parts", None),
    (part("purpose", b"fine-tune") + part("expires_after[seconds]", b"5") + part("file", b"x", "x") + END, "expires_after[seconds]", None),
    (part("purpose", b"fine-tune") + part("expires_after[anchor]", b"never") + part("file", b"x", "x") + END, "expires_after[anchor]", None),
]


@pytest.mark.parametrize("body, message, content_type", BAD)
def test_bad_forms(files, body, message, content_type):
    before = on_disk(files)
    answer = raw(files, body, content_type or f"multipart/form-data; boundary={BOUNDARY}")
    assert answer.status_code == 400 and message in answer.json()["error"]["message"], answer.text
    assert answer.json()["error"]["type"] == "invalid_request_error"
    wait_for(lambda: on_disk(files) == before, 10, "nothing is left")


@pytest.mark.parametrize("content_type", ["application/json", "multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data; boundary=" + "b" * 80])
def test_bad_content_types(files, content_type):
    answer = raw(files, b"x" * 100, content_type)
    assert answer.status_code == 415 and "multipart/form-data" in answer.json()["error"]["message"]


def test_too_large(files):
    """Refused by its Content-Length, before a byte is sent."""
    with socket.create_connection(("127.0.0.1", files.port), timeout=300) as s:
        s.sendall(f"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=b\r\nContent-Length: {600 << 20}\r\n\r\n".encode())
        assert s.recv(1000).startswith(b"HTTP/1.1 413 ")


def test_chunked_in_small_pieces(files):
    body = part("purpose", b"fine-tune") + part("file", b"abc" * 5000, "x.jsonl") + END
    answer = raw(files, (body[i:i + 7] for i in range(0, len(body), 7)))
    assert answer.status_code == 200 and answer.json()["bytes"] == 15000


def test_a_client_that_leaves_in_the_middle(files):
    before = on_disk(files)
    with socket.create_connection(("127.0.0.1", files.port), timeout=300) as s:
        s.sendall(f"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary={BOUNDARY}\r\nContent-Length: 9000000\r\n\r\n".encode()
                  + part("file", b"x" * 2_000_000, "x")[:-2])
        wait_for(lambda: len(on_disk(files)) > len(before), 10, "the upload is being written")
    wait_for(lambda: on_disk(files) == before, 10, "nothing is left of it")


def test_many_at_once_in_bounded_memory(files):
    """Eight uploads of 12 MB each: they are written as they come, not collected."""
    before, content, answers = files.resident_bytes(), os.urandom(12 << 20), []
    threads = [threading.Thread(target=lambda: answers.append(upload(files, content).json())) for _ in range(8)]
    for t in threads:
        t.start()
    peak = 0
    while any(t.is_alive() for t in threads):
        peak = max(peak, files.resident_bytes())
        assert files.get("/health").status_code == 200
    assert len(answers) == 8 and all(a["bytes"] == len(content) for a in answers)
    assert peak - before < 48 << 20
    for a in answers:
        requests.delete(f"{files.url}/v1/files/{a['id']}", timeout=300)


def test_keep_alive_after_an_upload(files):
    with requests.Session() as session:
        for _ in range(3):
            made = session.post(files.url + "/v1/files", files={"file": ("a", b"x")}, data={"purpose": "fine-tune"}, timeout=300)
            assert made.status_code == 200 and session.get(files.url + "/health", timeout=300).status_code == 200


def test_unknown_file(files):
    for path in ("file-nope", "file-nope/content", "..%2Fjobs.sqlite"):
        answer = files.get(f"/v1/files/{path}")
        assert answer.status_code == 404 and (answer.json().get("error_type") == "not_found" or answer.json()["error"]["code"] == "not_found")
    assert requests.delete(files.url + "/v1/files/file-nope", timeout=300).status_code == 404


def test_a_file_in_use_stays(files):
    made = upload(files, b"".join(json.dumps({"prompt": f"p {i}", "completion": f" c {i} and more"}).encode() + b"\n" for i in range(30))).json()
    body = {"serve_as": "uses-a-file", "dataset": {"file": made["id"]}, "hyperparameters": {"max_steps": 3000, "epochs": 1000, "batch_tokens": 64, "max_length": 32}}
    job = files.post("/train", body).json()["id"]
    refused = requests.delete(f"{files.url}/v1/files/{made['id']}", timeout=300)
    assert refused.status_code == 409 and job in refused.json()["error"]["message"]
    files.post(f"/train/{job}/cancel", {})
    wait_for(lambda: files.get(f"/train/{job}").json()["status"] == "cancelled", 60)
    assert requests.delete(f"{files.url}/v1/files/{made['id']}", timeout=300).status_code == 200


def test_orphans_are_swept_at_start(start, tmp_path):
    with start("--data-dir", tmp_path) as s:
        kept = upload(s).json()["id"]
    for name in ("files/file-orphan", "files/file-x.tmp", "inline/job-gone.json", "checkpoints/job-gone/x", "tensorboard/job-gone/x"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    with start("--data-dir", tmp_path) as s:
        assert s.get(f"/v1/files/{kept}/content").status_code == 200
        wait_for(lambda: on_disk(s) == [kept], 10, "the sweep")
        for folder in ("inline", "checkpoints", "tensorboard"):
            wait_for(lambda: not list((tmp_path / folder).iterdir()), 10, folder)


def test_the_sweep_takes_no_upload(start, tmp_path):
    """What is uploaded while the daemon starts is refused, or there for good."""
    for _ in range(3):
        made = []
        with start("--data-dir", tmp_path, ready=False) as s:
            while len(made) < 5:
                answer = upload(s)
                assert answer.status_code == 200 or (answer.status_code == 503 and answer.headers["retry-after"]), answer.text
                made += [answer.json()["id"]] if answer.status_code == 200 else []
            for name in made:
                assert s.get(f"/v1/files/{name}/content").status_code == 200


def test_an_expired_file_that_a_job_needs_stays(start, tmp_path):
    with start("--data-dir", tmp_path) as s:
        needed, other = upload(s).json()["id"], upload(s).json()["id"]
        body = {"dataset": {"file": needed}, "hyperparameters": {"max_steps": 100000, "epochs": 1000, "max_length": 32}}
        job = s.post("/train", body).json()["id"]
        s.post(f"/train/{job}/pause", {})
        wait_for(lambda: s.get(f"/train/{job}").json()["status"] == "paused", 60)
        for own in (f"files/{needed}", "cache/x", "inline/x", "checkpoints/x"):
            (tmp_path / own).parent.mkdir(exist_ok=True)
            (tmp_path / own).touch()
            refused = s.post("/train", {"dataset": {"path": own}})
            assert refused.status_code == 422 and "not inside the data directory" in refused.json()["error"]
    db = sqlite3.connect(tmp_path / "jobs.sqlite")
    with db:
        db.execute("UPDATE files SET expires = 1")
    db.close()
    with start("--data-dir", tmp_path) as s:
        wait_for(lambda: on_disk(s) == [needed], 10, "the sweep")
        assert s.get(f"/v1/files/{other}").status_code == 404 and s.get(f"/v1/files/{needed}").status_code == 200
