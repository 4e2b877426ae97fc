"""`trainerd top`, `trainerd report` and the live page of real runs: in progress, resumed, failed, and missing."""

import codecs
import fcntl
import html
import pathlib
import pty
import re
import select
import socket
import struct
import termios
import unittest
import urllib.error
import urllib.request

from browser import Browser
from support import *
from sweep_support import BASE

# Directory for pictures of pages and of `trainerd top`; none are kept if it is not set.
PICTURES = os.environ.get("TRAINERD_PICTURES")


def trainerd(*args, **kwargs):
    return subprocess.run([BINARY, *args], capture_output=True, text=True, timeout=120, **kwargs)


class Screen:
    """A terminal's screen, for the few control sequences that `trainerd top` uses."""

    def __init__(self, columns, rows):
        self.columns, self.rows = columns, rows
        self.other, self.cursor = False, True
        self.lines, self.row, self.column = [""] * rows, 0, 0
        self.style, self.styles = "0", {}  # the current style, and the style of each written cell

    def feed(self, text):
        for sequence, char in re.findall(r"\x1b\[([?0-9;]*[A-Za-z])|([\s\S])", text):
            if sequence:
                self.control(sequence)
            elif char == "\r":
                self.column = 0
            elif char == "\n":
                self.row += 1
            elif self.row < self.rows:
                line = self.lines[self.row].ljust(self.column)
                self.lines[self.row] = line[:self.column] + char + line[self.column + 1:]
                self.styles[self.row, self.column] = self.style
                self.column += 1

    def control(self, sequence):
        if sequence.endswith("m"):
            self.style = sequence[:-1] or "0"
        elif sequence == "H":
            self.row = self.column = 0
        elif sequence == "K":
            self.lines[self.row] = self.lines[self.row][:self.column]
        elif sequence == "J":
            self.lines[self.row] = self.lines[self.row][:self.column]
            self.lines[self.row + 1:] = [""] * (self.rows - self.row - 1)
        elif sequence == "2J":
            self.lines = [""] * self.rows
        elif sequence in ("?1049h", "?1049l"):
            self.other = sequence.endswith("h")
        elif sequence in ("?25h", "?25l"):
            self.cursor = sequence.endswith("h")

    def text(self):
        return "\n".join(self.lines)

    def html(self):
        """The screen as HTML with the colours of a terminal, dark or light like the page."""
        rules = "".join(f".s{code} {{ color: light-dark({light}, {dark}); }}" for code, light, dark in
                        ((31, "#c01c28", "#f66151"), (32, "#26803a", "#57e389"), (33, "#986a00", "#f8e45c"), (34, "#1a5fb4", "#99c1f1"),
                         (35, "#813d9c", "#dc8add"), (36, "#0b7a85", "#5bc8af"),
                         (37, "#77767b", "#c0bfbc"), (90, "#9a9996", "#77767b"), (91, "#e01b24", "#ff7b63"), (95, "#9141ac", "#e8a8ea"),
                         (96, "#2190a4", "#93ddc2")))
        body = ""
        for row, line in enumerate(self.lines):
            for column, char in enumerate(line.ljust(self.columns)):
                codes = " ".join("s" + code for code in self.styles.get((row, column), "0").split(";"))
                body += f"<span class='{codes}'>{html.escape(char)}</span>"
            body += "\n"
        return (f"<!doctype html><meta charset=utf-8><style>:root {{ color-scheme: light dark; }} body {{ margin: 16px; background: light-dark(#fff, #1d1d20);"
                f" color: light-dark(#1d1d20, #deddda); }} pre {{ font: 15px/1.2 'DejaVu Sans Mono', monospace; margin: 0; }} span {{ display: inline-block; width: 1ch; height: 1.2em; overflow: hidden; vertical-align: top; }} .s1 {{ font-weight: bold; }}"
                f" .s2 {{ opacity: .6; }} .s7 {{ filter: invert(1); }} {rules}</style><pre>{body}</pre>")


@sliced(6)
class Top(RunTest):
    """`trainerd top` on a terminal."""

    def open_top(self, target, columns=80, rows=24, **environment):
        self.master, self.slave = pty.openpty()
        self.addCleanup(os.close, self.master)
        self.addCleanup(os.close, self.slave)
        self.resize(columns, rows)
        self.before = termios.tcgetattr(self.slave)
        self.screen = Screen(columns, rows)
        # A frame truncated by a crash may end inside a character.
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.top = subprocess.Popen([BINARY, "top", target], stdin=self.slave, stdout=self.slave, stderr=self.slave, start_new_session=True,
                                    env={**os.environ, "TERM": "xterm-256color", "NO_COLOR": "", **environment})
        self.addCleanup(self.top.wait)
        self.addCleanup(self.top.kill)

    def keep(self, name):
        if not PICTURES:
            return
        while select.select([self.master], [], [], 0.05)[0]:  # reads the whole frame
            self.read(0)
        page = self.root / f"{name}.html"
        page.write_text(self.screen.html())
        browser = Browser()
        for kind, dark in (("light", False), ("dark", True)):
            browser.open(page.as_uri(), 32 + 10 * self.screen.columns, 40 + 18 * self.screen.rows, dark)
            browser.picture(str(pathlib.Path(PICTURES) / f"{name}-{kind}.png"))
        browser.close()

    def resize(self, columns, rows):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def read(self, seconds):
        if select.select([self.master], [], [], seconds)[0]:
            text = self.decoder.decode(os.read(self.master, 1 << 16))
            self.all = getattr(self, "all", "") + text
            self.screen.feed(text)

    def wait_for_text(self, pattern, timeout=PATIENCE):
        end = time.monotonic() + timeout
        while not re.search(pattern, self.screen.text()):
            self.assertLess(time.monotonic(), end, f"never {pattern!r}:\n{self.screen.text()}")
            self.read(0.1)

    def check_the_terminal_is_as_before(self):
        end = time.monotonic() + PATIENCE
        # A suspended `top` writes first and then restores the terminal's settings.
        while (self.screen.other or termios.tcgetattr(self.slave) != self.before) and time.monotonic() < end:
            self.read(0.1)
        self.assertFalse(self.screen.other)
        self.assertTrue(self.screen.cursor)
        self.assertEqual(termios.tcgetattr(self.slave), self.before)

    def long_run(self, *args):
        process = self.start(self.job(), "--set", "steps=1000000", "--set", "parallel.dp=2", *args)
        self.wait_for_step(process, 3)
        return process

    def test_a_run_under_way_is_followed_through_resizes_until_its_end(self):
        run = self.long_run("--set", "checkpoint.every=1000000")
        self.open_top(self.root / "a")
        self.wait_for_text(r"2 training")
        self.assertTrue(self.screen.other)
        self.assertFalse(self.screen.cursor)
        first = int(re.search(r"step ([\d,]+)/", self.screen.text()).group(1).replace(",", ""))
        self.wait_for_text(r"time of a step")
        self.keep("top-80")
        self.assertRegex(self.screen.text(), r"(?m)^a? ?system +training .*UTC$|^system  training")
        self.screen = Screen(120, 40)
        self.resize(120, 40)
        self.wait_for_text(r"time of a step.*ranks and memory")
        end = time.monotonic() + PATIENCE
        while int(re.search(r"step ([\d,]+)/", self.screen.text()).group(1).replace(",", "")) <= first:
            self.assertLess(time.monotonic(), end)
            self.read(0.2)
        self.keep("top-120")
        run.send_signal(signal.SIGTERM)
        self.wait_for_text(r"stopped by SIGTERM")
        os.write(self.master, b"q")
        self.assertEqual(self.top.wait(timeout=PATIENCE), 0)
        self.check_the_terminal_is_as_before()
        # Colours were shown, and all lines fit.
        self.assertIn("\x1b[36m", self.all)

    def test_signals_end_it_with_the_terminal_as_it_was(self):
        self.run_job(self.job())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            with self.subTest(number):
                self.open_top(self.root / "a", NO_COLOR="1")
                self.wait_for_text("step 24/24")
                self.assertNotEqual(termios.tcgetattr(self.slave), self.before)
                self.top.send_signal(number)
                self.assertEqual(self.top.wait(timeout=PATIENCE), 128 + number)
                self.check_the_terminal_is_as_before()
                self.assertNotRegex(self.all, r"\x1b\[\d+m(?<!\x1b\[0m)")

    def test_a_crash_leaves_the_terminal_as_it_was(self):
        if SANITIZED:
            self.skipTest("a sanitizer has handlers of its own")
        self.run_job(self.job())
        self.open_top(self.root / "a")
        self.wait_for_text("step 24/24")
        # Crashes in the middle of a frame that is not read for a while.
        self.resize(200, 60)
        time.sleep(0.3)
        self.top.send_signal(signal.SIGSEGV)
        time.sleep(0.2)
        while self.top.poll() is None:
            self.read(0.1)
        self.assertEqual(self.top.returncode, -signal.SIGSEGV)
        self.check_the_terminal_is_as_before()

    def test_a_suspended_top_gives_the_terminal_back_and_takes_it_again(self):
        self.run_job(self.job())
        self.open_top(self.root / "a")
        self.wait_for_text("step 24/24")
        self.top.send_signal(signal.SIGTSTP)
        self.check_the_terminal_is_as_before()
        self.top.send_signal(signal.SIGCONT)
        end = time.monotonic() + PATIENCE
        while not self.screen.other:
            self.assertLess(time.monotonic(), end)
            self.read(0.1)
        os.write(self.master, b"q")
        self.assertEqual(self.top.wait(timeout=PATIENCE), 0)
        self.check_the_terminal_is_as_before()

    def test_top_follows_a_run_by_its_address_and_shows_its_end(self):
        run = self.long_run()
        [found] = json.loads((self.root / "a" / "metrics.json").read_text())
        self.open_top("http://" + found["targets"][0], 100, 30)
        self.wait_for_text(r"2 training")
        run.kill()
        self.wait_for_text(r"ago: http://127.0.0.1:\d+: nothing answers")
        os.write(self.master, b"q")
        self.assertEqual(self.top.wait(timeout=PATIENCE), 0)

    def test_the_leader_shows_the_ranks_of_every_node(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        job = self.job()
        agents = [self.start(job, "--nodes", "2", "--node", str(node), "--rendezvous", f"127.0.0.1:{port}", "--set", "parallel.dp=4",
                             "--set", "batch.micro=1", "--set", "steps=1000000", "--metrics-listen", "127.0.0.1:0") for node in range(2)]
        self.wait_for_step(agents[0], 3)
        shown = {}
        until = time.monotonic() + PATIENCE
        # What ranks do comes once a second.
        while not shown or (not all(shown["metrics.json"]["ranks"]["last"]) and time.monotonic() < until):
            for file in ("metrics.json", "metrics-node-1.json"):
                [found] = json.loads((self.root / "a" / file).read_text())
                with urllib.request.urlopen(f"http://{found['targets'][0]}/status.json", timeout=PATIENCE) as reply:
                    shown[file] = json.load(reply)
        ranks = shown["metrics.json"]["ranks"]
        self.assertEqual([ranks["names"][s] for s in ranks["state"]], ["training"] * 4)
        self.assertEqual(ranks["node"], [0, 0, 1, 1])
        # A node reports the memory of its own ranks.
        self.assertTrue(all(ranks["planned_bytes"][:2]))
        self.assertTrue(all(shown["metrics-node-1.json"]["ranks"]["planned_bytes"][2:]))
        self.assertGreater(shown["metrics-node-1.json"]["step"], 0)
        # What each rank does is told to node 0 by the others.
        does = r"((forward|backward|the \w+) .*|its start|the load of its state)"
        for rank in range(4):
            self.assertRegex(ranks["doing"][rank], does)
            self.assertRegex(ranks["last"][rank], r"^\w+ #\d+ '.*' of \w+, (done|under way|not begun)$")
        self.assertRegex(trainerd("top", "--once", self.root / "a").stdout, rf"rank 3  (\d\S* ?\w* in )?{does}; last ")
        self.assertIn("4 training", trainerd("top", "--once", self.root / "a").stdout)
        for agent in agents:
            agent.send_signal(signal.SIGTERM)
        for agent in agents:
            agent.communicate(timeout=PATIENCE)

    def test_once_prints_a_frame_for_a_pipe_without_colours(self):
        self.run_job(self.job())
        done = trainerd("top", "--once", self.root / "a", env={**os.environ, "COLUMNS": "120"})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("\x1b", done.stdout)
        lines = done.stdout.splitlines()
        self.assertLessEqual(max(map(len, lines)), 120)
        self.assertGreater(max(map(len, lines)), 100)
        self.assertIn("system  done", lines[0])
        self.assertRegex(done.stdout, r"step 24/24  100%")
        loss = self.steps()[-1]["loss"]
        self.assertIn(f"loss {loss:.4f}", done.stdout)
        self.assertRegex(done.stdout, r"finish +all 24 steps are done")

    def test_without_a_target_it_is_the_default_address_of_metrics(self):
        self.assertIn("http://127.0.0.1:9464", trainerd("top", "--help").stdout)

    def test_what_cannot_be_shown_is_an_error_that_says_so(self):
        (self.root / "empty").mkdir()
        for target, status, text in [(self.root / "empty", 2, "is not the output directory of a run"),
                                     (self.root / "none", 2, "there is no such directory"),
                                     ("http://127.0.0.1:1", 7, "nothing answers: Connection refused"),
                                     ("https://127.0.0.1:1", 2, "metrics are served by http"), ("ftp://a", 2, "metrics are served by http"),
                                     ("http://no.such.host.invalid", 7, "the host is not found")]:
            with self.subTest(str(target)):
                done = trainerd("top", "--once", target)
                self.assertEqual(done.returncode, status, done.stderr)
                self.assertIn(text, done.stderr)
                self.assertEqual(done.stdout, "")
        self.run_job(self.job(), "--set", "steps=2", "--set", "optimizer.schedule.warmup=0")
        done = trainerd("top", self.root / "a")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--once", done.stderr)

    def test_failed_and_resumed_runs_say_so(self):
        process = self.start(self.job(), "--set", "steps=1000000", "--set", "restarts=0")
        self.wait_for_step(process, 12)
        os.kill(self.children(process.pid)[0], signal.SIGKILL)
        process.communicate(timeout=PATIENCE)
        done = trainerd("top", "--once", self.root / "a")
        self.assertRegex(done.stdout.splitlines()[0], r"system  failed  rank 0 .*ended by signal 9")
        last = self.steps()[-1]["step"]
        process = self.start(self.job(), "--set", "steps=1000000")
        self.wait_for_step(process, last + 3)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE)
        done = trainerd("top", "--once", self.root / "a")
        self.assertRegex(done.stdout.splitlines()[0], r"system  stopped  stopped by SIGTERM")
        self.assertIn("attempt 2", done.stdout)


@sliced(6)
class Pages(RunTest):
    """The pages in Chromium."""

    @classmethod
    def setUpClass(cls):
        cls.browser = Browser(timeout=180 if SANITIZED else 60)

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()

    def keep(self, name):
        if PICTURES:
            self.browser.picture(str(pathlib.Path(PICTURES) / f"{name}.png"))

    def check_it_is_well(self, requests):
        self.assertEqual(self.browser.problems, [])
        self.assertEqual(sorted(set(self.browser.requests)), sorted(requests))
        # Nothing is cut off at the side, even in a narrow window.
        self.assertLessEqual(self.browser.run("document.documentElement.scrollWidth - innerWidth"), 0)

    def write_report(self, *names):
        page = self.root / "page.html"
        done = trainerd("report", *(self.root / n for n in names), "--out", page)
        self.assertEqual(done.returncode, 0, done.stderr)
        return page.as_uri()

    def test_the_live_page_follows_a_run_light_and_dark_and_shows_its_end(self):
        run = self.start(self.job(), "--set", "steps=1000000", "--set", "parallel.dp=2")
        self.wait_for_step(run, 30)
        [found] = json.loads((self.root / "a" / "metrics.json").read_text())
        url = f"http://{found['targets'][0]}/"
        colors = []
        for name, width, dark in [("live-light", 1280, False), ("live-dark", 1280, True), ("live-narrow", 420, False)]:
            self.browser.open(url, width, 900, dark)
            self.browser.wait_for("document.querySelectorAll('figure svg path.line').length >= 4")
            self.check_it_is_well([url, *(url + p for p in ("live.css", "live.js", "status.json"))])
            colors.append(self.browser.run("getComputedStyle(document.body).backgroundColor"))
            self.keep(name)
        self.assertNotEqual(colors[0], colors[1])
        text = self.browser.run("document.body.innerText")
        for part in ("system", "training", "tokens/s", "2 training", "compute", "tp1 pp1 dp2"):
            self.assertIn(part, text)
        step = "Number(document.querySelector('.card b').textContent.split(' / ')[0].replaceAll(',', ''))"
        first = self.browser.run(step)
        self.browser.wait_for(f"{step} > {first}")
        # The page shows the log's values.
        shown = self.browser.run("[...document.querySelectorAll('.card')].map(c => c.innerText.split('\\n'))")
        at, loss = int(shown[0][0].split(" / ")[0].replace(",", "")), float(shown[1][0])
        self.assertAlmostEqual(loss, next(s["loss"] for s in self.steps() if s["step"] == at), places=4)
        run.kill()
        run.wait()
        self.browser.wait_for("!document.getElementById('problem').hidden")
        self.assertIn("No answer for", self.browser.run("document.getElementById('problem').textContent"))

    def test_the_pages_are_read_only(self):
        run = self.start(self.job(), "--set", "steps=1000000")
        self.wait_for_step(run, 2)
        [found] = json.loads((self.root / "a" / "metrics.json").read_text())
        for path in ("/", "/status.json", "/metrics"):
            with self.assertRaises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(f"http://{found['targets'][0]}{path}", data=b"stop=1", timeout=5)
            self.assertEqual(refused.exception.code, 405)
            refused.exception.close()
        self.assertIsNone(run.poll())

    def test_three_runs_are_compared_one_under_way_one_failed(self):
        self.run_job(self.job("base"))
        failed = self.start(self.job("fast", lr="3.0e-3"), "--set", "steps=1000000", "--set", "restarts=0")
        self.wait_for_step(failed, 12, "fast")
        os.kill(self.children(failed.pid)[0], signal.SIGKILL)
        failed.communicate(timeout=PATIENCE)
        running = self.start(self.job("running"), "--set", "steps=1000000", "--set", "model.layers=3")
        self.wait_for_step(running, 20, "running")
        url = self.write_report("base", "fast", "running")
        for name, width, dark in [("compare-light", 1280, False), ("compare-dark", 1280, True), ("compare-narrow", 420, False)]:
            self.browser.open(url, width, 900, dark)
            self.check_it_is_well([url])
            self.keep(name)
        figures = self.browser.run("[...document.querySelectorAll('#figures tr')].map(r => r.innerText.split('\\t').map(t => t.trim()))")
        self.assertEqual([row[0] for row in figures[1:]], ["base", "fast", "running"])
        self.assertEqual([row[1] for row in figures[1:]], ["done", "failed", "running"])
        self.assertEqual(figures[1][2], "24 / 24")
        self.assertEqual(figures[1][figures[0].index("loss")], f"{self.steps('base')[-1]['loss']:.4f}")
        keys = {row[0]: row[1:] for row in self.browser.run("[...document.querySelectorAll('#keys tr')].map(r => r.innerText.split('\\t').map(t => t.trim()))")}
        self.assertEqual(keys["model.layers"], ["2", "2", "3"])
        self.assertEqual([float(v) for v in keys["optimizer.lr"]], [1e-3, 3e-3, 1e-3])
        self.assertNotIn("output", keys)
        self.assertNotIn("seed", keys)

    def test_the_page_of_a_sweep_shows_what_each_job_has_light_and_dark(self):
        (self.root / "base.yaml").write_text(BASE.format(steps=20))
        (self.root / "sweep.yaml").write_text(f"name: page\noutput: {self.root}/page\nbase: base.yaml\nat_once: 2\n"
                                              "list: [{optimizer.lr: 1.0e-5}, {optimizer.lr: 1.1e-5}, {optimizer.lr: 1.0e-2, optimizer.weight_decay: 0.3}, {model.norm: layer}, {model.heads: 5}]\n")
        done = trainerd("sweep", self.root / "sweep.yaml")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        url = (self.root / "page" / "results.html").as_uri()
        for name, width, dark in (("sweep-narrow", 420, False), ("sweep-light", 1280, False), ("sweep-dark", 1280, True)):
            self.browser.open(url, width, 900, dark)
            self.check_it_is_well([url])
            self.keep(name)
        rows = self.browser.run("[...document.querySelectorAll('.jobs tr')].map(r => [...r.cells].map(c => c.textContent))")
        self.assertEqual(rows[0][:4], ["job", "optimizer.lr", "optimizer.weight_decay", "model.norm"])
        # A job without its own value shows the base's.
        self.assertEqual([row[1:4] for row in rows[1:5]], [["1e-05", "0.1", "rms"], ["1.1e-05", "0.1", "rms"], ["0.01", "0.3", "rms"], ["0.001", "0.1", "layer"]])
        self.assertEqual(self.browser.run("[...document.querySelectorAll('.jobs tr')[3].cells].slice(1, 4).map(c => c.className)"), ["", "", "dim"])
        self.assertIn("not divisible by heads 5", rows[-1][0])  # a separate row
        # No axis line covers a label, and labels of one axis do not overlap.
        last, first = self.browser.run("(e => [e.findLastIndex(n => n.matches('line.axis')), e.findIndex(n => n.matches('text.y'))])([...document.querySelectorAll('svg *')])")
        self.assertLess(last, first)
        ticks = self.browser.run("[...document.querySelectorAll('text.y')].map(t => [t.textContent, Number(t.getAttribute('x')), Number(t.getAttribute('y'))])")
        for x in {x for _, x, _ in ticks}:
            heights = sorted(y for _, at, y in ticks if at == x)
            self.assertTrue(all(b - a >= 14 for a, b in zip(heights, heights[1:])), ticks)
        # Logarithmic: a factor of 100 takes twice the distance of a factor of 10.
        lr = {text: y for text, x, y in ticks if x == ticks[0][1]}
        self.assertAlmostEqual((lr["1e-05"] - lr["0.001"]) / (lr["0.001"] - lr["0.01"]), 2, places=1)

    def test_curves_are_smoothed_zoomed_and_hidden(self):
        for name in ("a", "b"):
            self.run_job(self.job(name), "--set", "seed=1" if name == "a" else "seed=2")
        self.browser.open(self.write_report("a", "b"))
        curves = "[...document.querySelector('figure').querySelectorAll('path.line')].map(p => p.getAttribute('d'))"
        before = self.browser.run(curves)
        self.assertEqual(len(before), 2)
        self.browser.run("(s => { s.value = 0.8; s.dispatchEvent(new Event('input')); })(document.getElementById('smoothing'))")
        smooth = self.browser.run(curves)
        self.assertEqual(len(smooth), 4)  # with the curves that they were smoothed from
        self.assertTrue(set(before).isdisjoint(smooth[1::2]))
        x, y, width, height = self.browser.run("(r => [r.x, r.y, r.width, r.height])(document.querySelector('figure svg').getBoundingClientRect())")
        self.browser.drag(x + width * 0.4, x + width * 0.7, y + height / 2)
        low, high = self.browser.run("T.charts.zoom")
        self.assertTrue(5 < low < high < 22, (low, high))
        self.browser.move(x + width / 2, y + height / 2)
        self.assertRegex(self.browser.run("document.querySelector('.reading').textContent"), r"^\d\.\d+$")
        self.browser.run("[...document.querySelectorAll('button')].find(b => b.textContent === 'whole range').click()")
        self.assertIsNone(self.browser.run("T.charts.zoom"))
        self.browser.run("document.querySelector('#controls input[type=checkbox]').click()")
        self.assertEqual(len(self.browser.run(curves)), 2)
        self.browser.run("(s => { s.value = 'time'; s.dispatchEvent(new Event('change')); })(document.getElementById('axis'))")
        self.assertEqual(self.browser.problems, [])

    def test_the_report_of_one_run_is_the_one_that_it_wrote(self):
        self.run_job(self.job())
        written = (self.root / "a" / "report.html").read_text()
        done = trainerd("report", self.root / "a")
        self.assertEqual(done.returncode, 0, done.stderr)

        def steady(page):
            return re.sub(r"as of [\d: -]+UTC|<b>[^<]*</b><span>total time", "", page)

        self.assertEqual(steady(done.stdout), steady(written))
        for name, dark in [("report-light", False), ("report-dark", True)]:
            self.browser.open((self.root / "a" / "report.html").as_uri(), dark=dark)
            self.check_it_is_well([(self.root / "a" / "report.html").as_uri()])
            self.keep(name)

    def test_what_is_no_run_is_refused_and_nothing_is_written(self):
        self.run_job(self.job(), "--set", "steps=2", "--set", "optimizer.schedule.warmup=0")
        (self.root / "empty").mkdir()
        done = trainerd("report", self.root / "a", self.root / "empty", "--out", self.root / "page.html")
        self.assertEqual(done.returncode, 2)
        self.assertIn(f"{self.root / 'empty'} is not the output directory of a run", done.stderr)
        self.assertFalse((self.root / "page.html").exists())


if __name__ == "__main__":
    unittest.main()
