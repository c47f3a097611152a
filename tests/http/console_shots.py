"""Takes the pictures of docs/console.md: console_shots.py OUT_FOLDER, with the daemon that TANDEM_BUILD_DIR names."""
import sys
import tempfile
import threading
from pathlib import Path

from browser import Browser
from conftest import ROOT, Server

PIRATE = ROOT / "models/demo-pirate/pirate.jsonl"


def load(server, stop):
    """Somebody else's requests, so that the charts have something to show."""
    while not stop.is_set():
        server.generate("Lily and Ben", max_new_tokens=120, do_sample=True)


def train(page, name, steps):
    page.js("location.hash = 'training'")
    page.click("#train-new")
    page.put_file("#train-file", PIRATE)
    page.fill("#train-name", name)
    page.fill("#train-epochs", steps)
    page.fill("#train-rate", "0.002")
    page.fill("#train-rank", "8")
    page.fill("#train-batch", "512")
    page.fill("#train-held", "0.1")


def shrink(folder):
    """256 colours are enough for a page; without Pillow the files are twice as large."""
    try:
        from PIL import Image
    except ImportError:
        return
    for path in folder.glob("console*.png"):
        Image.open(path).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


def main(out):
    out.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder) / "log", "--threads", "2") as server, Browser() as browser:
        page, stop = browser.page(1200, 840), threading.Event()
        others = threading.Thread(target=load, args=(server, stop))
        page.open(server.url + "/")
        page.wait("document.querySelector('#status').textContent === 'ready'")
        others.start()
        page.fill("#seed", "7")
        for _ in range(12):
            page.wait("!document.querySelector('#prompt-go').disabled")
            page.click("#prompt-go")
            page.wait("!document.querySelector('#prompt-go').disabled")
            page.js("new Promise(f => setTimeout(f, 1500))")
        page.screenshot(out / "console.png")
        page.show(390, 844, dark=True)
        page.js("scrollTo(0, 0)")
        page.screenshot(out / "console-phone.png")
        page.show(1200, 840, dark=True)
        train(page, "pirate", "1")
        page.click("#train-check")
        page.wait("!document.querySelector('#train-report').hidden", 60)
        page.screenshot(out / "console-form.png")
        page.click("#train-go")
        page.wait("document.querySelector('#jobs progress')?.value > 0.6 || document.querySelector('.pill')?.textContent === 'succeeded'", 300)
        page.js("scrollTo(0, 0)")
        page.screenshot(out / "console-training.png")
        stop.set()
        others.join()
    shrink(out)


main(Path(sys.argv[1]))
