"""The table of rooms: which folder may include which, and which libraries it may use. From the top floor down, every
arrow points down. test_layers.py holds the includes and the object files against it; ARCHITECTURE.md says what belongs
in each room."""
from dataclasses import dataclass


@dataclass
class Room:
    """may: a word is a room beside this one, a path that ends in / any room, any other path one header.
    libraries: keys of LIBRARIES, beside libc, which all may use."""
    may: str
    libraries: str = ""


BASE = "engine/base/"

# A row is a folder without those below it, or one file that stands higher than its folder.
ROOMS = {
    "server/cli": Room("ops jobs rewards tinker api hub bridge access console schema kvevents net store json metrics memory config "
                       "engine/bench/bench.h engine/bench/eval.h engine/bench/training.h engine/eval/evaluation.h engine/serve/engine.h engine/serve/followers.h engine/serve/device_turn.h engine/train/train.h "
                       "engine/train/offline.h engine/train/ranks.h engine/train/split.h engine/train/bottleneck.h engine/train/tfevents.h engine/train/board.h engine/data/sources.h engine/model/options.h engine/model/ranks_agree.h engine/model/quantize.h engine/model/merge.h engine/template/chat_template.h "
                       "engine/tokenizer/tokenizer.h " + BASE, "uv cjson openssl"),
    "server/ops": Room("jobs api hub bridge access console kvevents net store json metrics memory config engine/serve/engine.h " + BASE, "uv"),
    "server/tinker": Room("api bridge access net store json metrics memory config engine/serve/engine.h engine/train/tuner.h engine/train/tuner_files.h " + BASE, "cjson uv"),
    "server/jobs": Room("rewards api hub bridge access net store json metrics memory config engine/serve/engine.h engine/train/train.h "
                        "engine/train/tfevents.h engine/train/board.h engine/train/bottleneck.h engine/train/split.h engine/train/teacher_file.h engine/data/dataset.h engine/eval/evaluation.h engine/tokenizer/tokenizer.h " + BASE, "uv"),
    "server/api": Room("hub bridge access schema net store json metrics memory config engine/serve/engine.h "
                       "engine/template/chat_template.h engine/tokenizer/tokenizer.h engine/files/model_file.h " + BASE, "cjson uv"),
    "server/zmq": Room("kvevents engine/serve/engine.h engine/serve/kv_events.h", "zmq msgpack"),
    "server/kvevents": Room("engine/serve/engine.h engine/serve/kv_events.h " + BASE),
    "server/rewards": Room("schema json engine/grammar/grammar.h " + BASE, "cjson curl pcre2"),
    "server/hub": Room("json " + BASE, "cjson curl openssl"),
    "server/bridge": Room("access schema net json metrics memory config engine/serve/engine.h engine/tokenizer/tokenizer.h " + BASE, "uv"),
    "server/access": Room("console net json metrics memory config engine/serve/engine.h " + BASE, "uv openssl"),
    "server/console": Room("net " + BASE),
    "server/schema": Room("json engine/grammar/grammar.h " + BASE, "cjson"),
    "server/net": Room("json metrics memory " + BASE, "uv llhttp openssl"),
    "server/store": Room("json " + BASE, "uv sqlite"),
    "server/json": Room("memory " + BASE, "cjson"),
    "server/metrics": Room("engine/serve/engine.h " + BASE),
    "server/memory": Room(BASE),
    "server/config": Room(BASE, "yaml"),

    "engine/eval": Room("serve data template tokenizer files base kernels/rng.h", "cjson pcre2"),
    "engine/bench": Room("serve train data tokenizer model base kernels/ops.h kernels/comm.h kernels/ceilings.h kernels/cpu_level.h kernels/trace.h kernels/rng.h"),
    "engine/serve": Room("kvstore train model grammar tokenizer files base kernels/ops.h kernels/comm.h kernels/trace.h kernels/rng.h"),
    "engine/kvstore": Room("base"),
    "engine/train": Room("data template model tokenizer files base kernels/ops.h kernels/comm.h kernels/trace.h kernels/rng.h"),
    "engine/data": Room("template tokenizer files base kernels/rng.h", "cjson zlib zstd"),
    "engine/template": Room("tokenizer files base", "cjson pcre2 utf8proc gmp"),
    "engine/model": Room("tokenizer files base kernels/ops.h kernels/comm.h kernels/comm_device.h kernels/num.h kernels/block.h kernels/rng.h", "cjson pcre2"),
    "engine/grammar": Room("tokenizer base kernels/rng.h", "utf8proc"),
    "engine/tokenizer": Room("files base", "cjson pcre2 utf8proc"),
    "engine/files": Room("base"),
    "engine/base": Room("", "cjson"),

    "kernels/open.c": Room("kernels/ ref cpu kernels/cuda/runtime/"),  # which devices there are
    "kernels/ceilings.c": Room("kernels/ kernels/cuda/runtime/"),
    "kernels/cuda/runtime": Room("train sample attention rows gemm kernels/cuda/ kernels/simt/ kernels/", "cxx cuda"),
    "kernels/cuda/train": Room("rows gemm kernels/cuda/ kernels/simt/ kernels/", "cxx"),
    "kernels/cuda/sample": Room("gemm kernels/cuda/ kernels/simt/ kernels/", "cxx"),
    "kernels/cuda/attention": Room("kernels/cuda/ kernels/simt/ kernels/", "cxx"),
    "kernels/cuda/rows": Room("gemm kernels/cuda/ kernels/simt/ kernels/", "cxx"),
    "kernels/cuda/gemm": Room("kernels/cuda/ kernels/simt/ kernels/", "cxx cuda"),
    "kernels/cuda": Room("simt kernels/", "cxx cuda"),
    "kernels/simt": Room("kernels/", "cxx"),
    "kernels/mpi": Room("kernels/", "mpi"),
    "kernels/cpu": Room("kernels/"),
    "kernels/ref": Room("kernels/"),
    "kernels": Room(""),

    "loadtest": Room("kernels/rng.h " + BASE, "uv llhttp cjson"),
}

# Headers of a tower that the towers above it may include; engine/base whole.
PUBLIC = {
    "engine": """engine/serve/engine.h engine/serve/kv_events.h engine/serve/followers.h engine/serve/device_turn.h engine/bench/bench.h engine/bench/eval.h engine/bench/training.h engine/eval/evaluation.h
        engine/train/train.h engine/train/tuner.h engine/train/tuner_files.h engine/train/bottleneck.h engine/train/offline.h engine/train/ranks.h engine/train/split.h engine/data/sources.h
        engine/train/tfevents.h engine/train/board.h engine/train/teacher_file.h engine/data/dataset.h engine/model/options.h engine/model/ranks_agree.h engine/model/quantize.h engine/model/merge.h engine/template/chat_template.h
        engine/grammar/grammar.h engine/tokenizer/tokenizer.h engine/files/model_file.h""".split() + [BASE],
    "kernels": "kernels/ops.h kernels/comm.h kernels/comm_device.h kernels/ceilings.h kernels/cpu_level.h kernels/trace.h kernels/num.h kernels/block.h kernels/rng.h".split(),
}

LIBRARIES = {
    "uv": {"uv.h"},
    "llhttp": {"llhttp.h", "llhttp/llhttp.h"},
    "cjson": {"cjson/cJSON.h"},
    "yaml": {"yaml.h"},
    "sqlite": {"sqlite3.h"},
    "jemalloc": {"jemalloc/jemalloc.h"},
    "openssl": {f"openssl/{name}.h" for name in "bio crypto err evp ssl sslerr x509".split()},
    "curl": {"curl/curl.h"},
    "pcre2": {"pcre2.h"},
    "utf8proc": {"utf8proc.h"},
    "gmp": {"gmp.h"},
    "zlib": {"zlib.h"},
    "zstd": {"zstd.h"},
    "mpi": {"mpi.h"},
    "zmq": {"zmq.h"},
    "msgpack": {"msgpack/pack.h", "msgpack/sbuffer.h"},
    "cuda": {"cuda_runtime.h", "library_types.h"},
    "cxx": set("""algorithm atomic chrono cassert cfloat cinttypes climits cmath condition_variable cstddef cstdint cstdio cstdlib
        cstring ctime deque functional limits map memory mutex new tuple type_traits unordered_map unordered_set utility vector""".split()),
}

# they measure the engine from inside, and are built by hand
EXEMPT = {"loadtest/constrained_cost.c", "loadtest/speculation_gain.c"}


def tower(path):
    return path.split("/")[0]


def room_of(path, rooms=ROOMS):
    """The row that a source or header belongs to: its own or its folder's; None: there is none."""
    folder = path.rsplit("/", 1)[0]
    return path if path in rooms else folder if folder in rooms else None


def entries(name, rooms=ROOMS):
    """What a row may include: rooms, as "folder/", and single headers."""
    parent = name.rsplit("/", 1)[0]
    return [word if "/" in word else f"{parent}/{word}/" for word in rooms[name].may.split()]


def may_include(name, header, rooms=ROOMS):
    folder = header.rsplit("/", 1)[0] + "/"
    own = name if name in rooms and not name.endswith(".c") else name.rsplit("/", 1)[0]
    return folder == own + "/" or header in entries(name, rooms) or folder in entries(name, rooms)


def linked_as(name):
    """The room of a row's symbols: cuda's rooms call each other through device.h, so its symbols are those of one room."""
    return "kernels/cuda" if name.startswith("kernels/cuda/") else name


def may_link(name, rooms=ROOMS):
    """Rooms whose symbols a row's objects may want: those that it reaches in its tower, and whole towers of which it may
    include headers: what is declared in these may be defined anywhere there."""
    reached, todo = set(), [row for row in rooms if linked_as(row) == name]
    while todo:
        row = todo.pop()
        reached.add(row)
        for entry in entries(row, rooms):
            near = tower(entry) == tower(row)
            found = [room_of(entry, rooms)] if near else [other for other in rooms if tower(other) == tower(entry)]
            todo += [other for other in found if near and other not in reached]
            reached.update(found)
    return {linked_as(row) for row in reached}
