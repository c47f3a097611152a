"""The C chat templates (template_tool)."""
import json
import os
import pathlib
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
FIXTURES = HERE.parent / "fixtures" / "templates"


def find_tool():
    """$TEMPLATE_TOOL, or template_tool in $TANDEM_BUILD_DIR (under its tests/), or in ./build."""
    if os.environ.get("TEMPLATE_TOOL"):
        return os.environ["TEMPLATE_TOOL"]
    build = pathlib.Path(os.environ.get("TANDEM_BUILD_DIR") or HERE.parent.parent / "build")
    path = build / "tests" / "template" / "template_tool"
    if not path.is_file():
        raise FileNotFoundError(f"no {path}: build it, or set TANDEM_BUILD_DIR or TEMPLATE_TOOL")
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
        assert code == 0, f"template_tool ended with {code}"

    def ask(self, **request):
        """(text as bytes, [(start, end, message)]); Refused"""
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if line.startswith(b"ok "):
            n, *spans = map(int, line[3:].split())
            return self.process.stdout.read(n), list(zip(spans[0::3], spans[1::3], spans[2::3]))
        if line.startswith(b"err "):
            raise Refused(line[4:-1].decode(errors="replace"))
        raise RuntimeError(f"template_tool died ({self.process.wait()})")

    def render(self, template, messages, tools=None, extra=None, prompt=False, **more):
        return self.ask(template=template, messages=messages, tools=tools, extra=extra or {}, prompt=prompt, **more)
