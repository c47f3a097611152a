"""The other side of tests/fault/preload.h: what of the daemon's calls fails, and what its clocks say."""
import errno
import mmap
import os
import struct

from conftest import BUILD

LIBRARY = BUILD / "tests" / "fault" / "libfault.so"
DAEMON = BUILD / "tests" / "fault" / "tandem-faulty"  # whose device fails, too
KINDS = ("malloc", "map", "open", "write", "sync", "rename", "thread", "op", "page", "device")
FIELDS = ("first", "count", "filter", "error", "seen", "failed")
ERRORS = {"malloc": errno.ENOMEM, "map": errno.ENOMEM, "open": errno.EROFS, "write": errno.ENOSPC, "sync": errno.EIO,
          "rename": errno.ENOSPC, "thread": errno.EAGAIN, "op": 0, "page": 0, "device": 0}
ALL = 1 << 60
SECOND = 1_000_000_000
TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Faults:
    """Maps the control file at `path`; env() is what the daemon is started with."""

    def __init__(self, path):
        self.path, size = path, 8 * (len(KINDS) * len(FIELDS) + 2)
        path.write_bytes(bytes(size))
        with open(path, "r+b") as f:
            self.map = mmap.mmap(f.fileno(), size)

    def env(self):
        return {"LD_PRELOAD": str(LIBRARY), "TANDEM_FAULT": str(self.path)}

    def _at(self, kind, field):
        return 8 * (KINDS.index(kind) * len(FIELDS) + FIELDS.index(field))

    def _put(self, kind, field, value):
        struct.pack_into("<q", self.map, self._at(kind, field), value)

    def get(self, kind, field):
        return struct.unpack_from("<q", self.map, self._at(kind, field))[0]

    def arm(self, kind, first=ALL, count=1, filter=0, error=None):
        """The calls from the first-th on fail, count of them; without `first` they are only counted."""
        self.off(kind)
        for field, value in (("count", count), ("filter", filter), ("error", error or ERRORS[kind]), ("seen", 0), ("failed", 0), ("first", first)):
            self._put(kind, field, value)

    def off(self, *kinds):
        for kind in kinds or KINDS:
            self._put(kind, "first", 0)

    def seen(self, kind):
        return self.get(kind, "seen")

    def failed(self, kind):
        return self.get(kind, "failed")

    def clocks(self, realtime=0.0, monotonic=0.0):
        """Seconds that the clocks are ahead."""
        struct.pack_into("<qq", self.map, 8 * len(KINDS) * len(FIELDS), int(realtime * SECOND), int(monotonic * SECOND))
