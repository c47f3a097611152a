"""API keys and certificates, made with the programs that users make them with."""
import re
import subprocess

from conftest import BINARY, ENV, ROOT

KEY = re.compile(r"tdm_[0-9A-Za-z]{43}")


def tandem_key(file, *args, check=True):
    done = subprocess.run([BINARY, "key", *map(str, args), "--api-keys", file], capture_output=True, text=True, timeout=300, cwd=ROOT, env=ENV)
    assert not check or done.returncode == 0, done.stderr
    return done


def new_key(file, name, role="user", *args):
    """-> the key"""
    out = tandem_key(file, "new", "--name", name, "--role", role, *args).stdout
    assert KEY.fullmatch(out.strip()) and out.endswith("\n")
    return out.strip()


class Keys:
    """A file with a key of each role, one that is revoked and one that has expired."""

    def __init__(self, file):
        self.file = file
        self.user, self.train, self.admin = (new_key(file, f"a-{role}", role) for role in ("user", "train", "admin"))
        self.revoked, self.expired = new_key(file, "a-leak", "admin"), new_key(file, "an-intern", "admin", "--expires", "2020-01-31")
        self.wrong = "tdm_" + "0" * 43
        tandem_key(file, "revoke", "a-leak")

    def of(self, role):
        return getattr(self, role)

    def all(self):
        return [self.user, self.train, self.admin, self.revoked, self.expired]


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def certificate(path, name="localhost", kind=("ec", "-pkeyopt", "ec_paramgen_curve:P-256")):
    """A certificate for this machine, signed by itself, and its key, both in one file."""
    key = path.with_suffix(".key")
    subprocess.run(["openssl", "req", "-x509", "-newkey", *kind, "-nodes", "-days", "30", "-subj", f"/CN={name}", "-addext",
                    "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", path],
                   check=True, capture_output=True, timeout=300)
    path.write_text(path.read_text() + key.read_text())
    return path
