"""The C grammars (grammar_tool)."""
import json
import os
import pathlib
import subprocess

HERE = pathlib.Path(__file__).resolve().parent


def find_tool():
    """$GRAMMAR_TOOL, or grammar_tool in $TANDEM_BUILD_DIR (under its tests/), or in ./build."""
    if os.environ.get("GRAMMAR_TOOL"):
        return os.environ["GRAMMAR_TOOL"]
    build = pathlib.Path(os.environ.get("TANDEM_BUILD_DIR") or HERE.parent.parent / "build")
    path = build / "tests" / "grammar" / "grammar_tool"
    if not path.is_file():
        raise FileNotFoundError(f"no {path}: build it, or set TANDEM_BUILD_DIR or GRAMMAR_TOOL")
    return str(path)


class Refused(Exception):
    pass


class Tool:
    def __init__(self):
        self.process = subprocess.Popen([find_tool()], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def close(self):
        self.process.stdin.close()
        code = self.process.wait()
        self.process.stdout.close()
        assert code == 0, f"grammar_tool ended with {code}"

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if line.startswith(b"ok "):
            return line[3:-1].decode()
        if line.startswith(b"err "):
            raise Refused(line[4:-1].decode(errors="replace"))
        raise RuntimeError(f"grammar_tool died ({self.process.wait()})")

    def matches(self, regex, texts):
        return [c == "1" for c in self.ask(regex=regex, texts=texts)]

    def allowed(self, tokenizer, prefixes, **grammar):
        """How many tokens may follow each prefix; every bit of the masks has been compared (grammar_tool.c)."""
        return [int(n) for n in self.ask(tokenizer=str(tokenizer), prefixes=prefixes, **grammar).split()]
