"""tandem chat: in a pipe and on a terminal, with and without a chat template."""
import fcntl
import json
import os
import pty
import shutil
import signal
import subprocess
import termios

import pytest
from conftest import BINARY, DEMO, ENV, MODEL, ROOT, wait_for

QWEN = ROOT / "tests/fixtures/models/qwen2"  # random weights, 256 positions, about one token a byte, ChatML
PIRATE = ROOT / "models/demo-pirate"
GREEDY = ("--temperature", 0)


def chat(run, lines, *args, model=QWEN, status=0):
    """-> (stdout, stderr) of a conversation whose input is these lines."""
    got = run("chat", "--model", model, *args, input="".join(line + "\n" for line in lines).encode())
    assert got.returncode == status, got.stderr.decode()
    return got.stdout.decode(), got.stderr.decode()


def generate(run, prompt, n, *args, model=QWEN):
    got = run("generate", "--model", model, "--json", "--prompt", "-", "--max-new-tokens", n, *args, input=prompt.encode())
    assert got.returncode == 0, got.stderr.decode()
    return json.loads(got.stdout)["text"]


def page(*turns, system=None):
    """The prompt of user, assistant, user... as QWEN's template writes it. A message cannot hold NUL."""
    turns = [t.replace("\0", "\ufffd") for t in turns]
    messages = [("system", system)] * (system is not None) + [(("user", "assistant")[i % 2], text) for i, text in enumerate(turns)]
    return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in messages) + "<|im_start|>assistant\n"


def printed(*answers):
    return "".join(a if a.endswith("\n") else a + "\n" for a in answers)


def say(run, *turns, n=8, **kw):
    return generate(run, page(*turns, **kw), n, "--ignore-eos")


# ---- a model with a chat template ------------------------------------------------------------------------------------

@pytest.mark.smoke
def test_turns_go_through_the_template(run):
    a = say(run, "Hello")
    b = say(run, "Hello", a, "And you?")
    out, err = chat(run, ["Hello", "", "And you?"], "--max-new-tokens", 8, "--ignore-eos")
    assert out == printed(a, b)
    assert err.count("[cut off after 8 tokens]") == 2


def test_last_line_needs_no_end(run):
    got = run("chat", "--model", QWEN, "--max-new-tokens", 4, "--ignore-eos", input=b"Hello\r\nx")
    a = say(run, "Hello", n=4)
    assert got.stdout.decode() == printed(a, say(run, "Hello", a, "x", n=4))


def test_commands(run):
    lines = ["/system Be\tbrief.", "One", "/reset", "Two\\", "and three", "/reset", "/system", "//x", "/nonsense a", "/help", "/exit", "Four"]
    out, err = chat(run, lines, "--system", "Never used", "--max-new-tokens", 6, "--ignore-eos")
    assert out == printed(say(run, "One", system="Be\tbrief.", n=6), say(run, "Two\nand three", system="Be\tbrief.", n=6), say(run, "/x", n=6))
    assert "[unknown command /nonsense]" in err and err.count("/reset  ") == 2


def test_system(run):
    out, _ = chat(run, ["One"], "--system", "Be brief.", "--max-new-tokens", 6, "--ignore-eos")
    assert out == printed(say(run, "One", system="Be brief.", n=6))


def test_oldest_turns_are_forgotten(run):
    long = "a long line of many words " * 3
    a = say(run, long, system="S", n=8)
    out, err = chat(run, [long] * 4, "--system", "S", "--max-new-tokens", 8, "--ignore-eos")
    assert out.startswith(printed(a)) and "[forgot the 2 oldest messages: there is no more room]" in err
    assert out.count("\n") >= 4


def test_line_too_long_for_the_model(run):
    out, err = chat(run, ["word " * 300, "never read"], status=1)
    assert not out and "there is room for 1 to" in err


def test_answer_takes_the_room_there_is(run):
    out, err = chat(run, ["Hello"], "--ignore-eos")
    assert "[cut off after " in err and len(out) > 100


def test_another_template(run, tmp_path):
    (tmp_path / "t.jinja").write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    out, _ = chat(run, ["Hello"], "--chat-template", tmp_path / "t.jinja", "--max-new-tokens", 8, "--ignore-eos")
    assert out == printed(generate(run, "[Hello]", 8, "--ignore-eos"))
    _, err = chat(run, [], "--chat-template", "no/such.jinja", status=1)
    assert "no/such.jinja" in err


def test_broken_template(run, tmp_path):
    shutil.copytree(QWEN, tmp_path / "m")
    (tmp_path / "m" / "chat_template.jinja").write_text("{% for %}")
    _, err = chat(run, ["Hello"], model=tmp_path / "m", status=1)
    assert err.startswith("tandem: ") and "line 1" in err
    (tmp_path / "m" / "chat_template.jinja").write_text("{{ raise_exception('no such role') }}")
    _, err = chat(run, ["Hello"], model=tmp_path / "m", status=1)
    assert "no such role" in err


# ---- a model without -------------------------------------------------------------------------------------------------

def test_text_is_continued(run):
    first = generate(run, "Once upon a time", 10, model=MODEL)
    second = generate(run, "Once upon a time" + first, 10, model=MODEL)
    other = generate(run, "A dog", 10, model=MODEL)
    out, err = chat(run, ["", "Once upon a time", "", "A dog"], *GREEDY, "--max-new-tokens", 10, model=MODEL)
    assert out == printed(first, second, other)
    assert err.splitlines()[0].startswith(f"{MODEL.name} has no chat template: it continues each line")


def test_plain_turns(run):
    """As models without a template are fine-tuned; an answer ends where the user's next line would begin."""
    words = ("--max-new-tokens", 12)
    first = generate(run, "system: Be brief.\nuser: Hello\nassistant:", 12, model=MODEL)
    second = generate(run, f"system: Be brief.\nuser: Hello\nassistant: {first}\nuser: Bye\nassistant:", 12, model=MODEL)
    out, err = chat(run, ["Hello", "Bye"], "--chat-template", "plain", "--system", "Be brief.", *GREEDY, *words, model=MODEL)
    assert out == printed(first, second) and "no chat template" not in err


def test_stop_text_is_not_shown(run):
    words = ("--stop", "zzz", "--stop", " was", "--max-new-tokens", 100)

    def until_stop(prompt):
        text = generate(run, prompt, 100, *words, model=MODEL)
        return text.removesuffix(" was")
    first = until_stop("Once upon a time")
    second = until_stop("Once upon a time" + first)
    out, _ = chat(run, ["Once upon a time", ""], *words, *GREEDY, model=MODEL)
    assert out == printed(first, second) and " was" not in first


def test_no_instructions_without_a_template(run):
    out, err = chat(run, ["/system Be brief."], "--system", "Be nice.", model=MODEL)
    assert not out and err.count("[the model has no chat template: it knows no instructions]") == 2


def test_recommended_sampling(run):
    """models/demo asks for temperature 0.7 and top_p 0.9."""
    words = ("--seed", 3, "--max-new-tokens", 20)
    ours, _ = chat(run, ["The cat"], *words, model=DEMO)
    assert ours == printed(generate(run, "The cat", 20, "--seed", 3, "--temperature", 0.7, "--top-p", 0.9, model=DEMO))
    assert ours != chat(run, ["The cat"], "--temperature", 0, *words, model=DEMO)[0]


def test_adapter(run):
    ours, _ = chat(run, ["Once upon a time"], *GREEDY, "--max-new-tokens", 20, "--adapter", PIRATE, model=DEMO)
    assert ours == printed(generate(run, "Once upon a time", 20, "--adapter", PIRATE, model=DEMO))
    got = run("chat", "--model", DEMO, "--adapter", "no/such", input=b"")
    assert got.returncode == 1 and b"no/such" in got.stderr


# ---- a terminal ------------------------------------------------------------------------------------------------------

class Terminal:
    """tandem chat on a terminal of its own."""

    def __init__(self, *args):
        self.ours, theirs = pty.openpty()
        self.process = subprocess.Popen([BINARY, "chat", *map(str, args)], stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, env=ENV,
                                        start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(theirs)
        os.set_blocking(self.ours, False)
        self.bytes = b""

    @property
    def seen(self):
        return self.bytes.decode(errors="replace")

    def type(self, text):
        os.write(self.ours, text.encode())

    def _read(self):
        try:
            self.bytes += os.read(self.ours, 65536)
        except OSError:  # nothing yet, or it has ended
            pass

    def until(self, condition, what):
        """Reads on until condition(what was shown)."""
        def check():
            self._read()
            return condition(self.seen)
        wait_for(check, 100, what)

    def end(self):
        status = self.process.wait(300)
        self._read()
        return status

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.ours)


def test_on_a_terminal(run):
    a = say(run, "Hello")
    with Terminal("--model", QWEN, "--max-new-tokens", 8, "--ignore-eos") as t:
        t.until(lambda s: s.endswith("> "), "a prompt")
        assert t.seen.startswith("qwen2 on ") and "/help" in t.seen
        t.type("Hello\n")
        t.until(lambda s: s.count("\r\n> ") == 2, "an answer")
        assert "Hello\r\n" + printed(a).replace("\n", "\r\n") in t.seen
        t.type("word " * 300 + "\n")  # an error does not end it
        t.until(lambda s: s.count("\r\n> ") == 3, "another prompt")
        assert "tandem: this is " in t.seen
        t.type("\4")  # Ctrl-D
        assert t.end() == 0


def test_ctrl_c_stops_an_answer_then_ends(run):
    """On the slow device there is time to press it; should the answer be done first, Ctrl-C ends the program: again then."""
    for _ in range(5):
        with Terminal("--model", MODEL, "--device", "ref", "--ignore-eos", "--max-new-tokens", 400) as t:
            t.until(lambda s: s.endswith("> "), "a prompt")
            t.type("Once upon a time\n")
            t.until(lambda s: len(s.partition("time\r\n")[2]) > 20, "an answer")
            t.type("\3")
            t.until(lambda s: s.count("> ") == 2 or t.process.poll() is not None, "a prompt, or the end")
            if t.process.poll() is not None:
                continue
            assert len(t.seen) < 1500
            t.type("\3")
            assert t.end() == 0
            return
    raise AssertionError("the answer could not be stopped")


def test_interrupted_in_a_pipe():
    p = subprocess.Popen([BINARY, "chat", "--model", QWEN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, env=ENV)
    p.stdin.write(b"Hello\n")
    p.stdin.flush()
    os.read(p.stdout.fileno(), 1)  # it answers: the handler is there
    p.send_signal(signal.SIGINT)
    p.communicate(timeout=300)
    assert p.returncode == 130
