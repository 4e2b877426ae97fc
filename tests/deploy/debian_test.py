"""The Debian package: its dependencies and contents, and that the unpacked program starts."""

import gzip
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from documents import documented, documented_line
from slices import FULL, sliced

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(os.environ["TRAINERD_BUILD"]).resolve()


# Runs a script in a root with this machine's files, whose changes are discarded. Without auto-update, man-db does not read all manual
# pages of this machine.
OVERLAY = """set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$1"
mkdir "$1"/upper "$1"/work "$1"/root
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount -t proc proc "$1/root/proc"
mount --bind /dev "$1/root/dev"
mkdir "$1/root/package"
mount --bind "$2" "$1/root/package"
rm -f "$1/root/var/lib/man-db/auto-update"
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive chroot "$1/root" bash -ec "cd /package; $3"
"""


def container_steps():
    """The stages of the container file: of each (instruction, what it says)."""
    text = (ROOT / "deploy/Containerfile").read_text()
    steps = [tuple(line.split(" ", 1)) for line in text.splitlines() if line and not line.startswith("#")]
    first, second = [at for at, (step, _) in enumerate(steps) if step == "FROM"]
    return steps[first + 1:second], steps[second + 1:]


def as_script(steps):
    """What a builder does for the steps, by a shell: sources are in /context, what an earlier stage made in /stage."""
    lines = []
    for step, rest in steps:
        words = rest.split()
        if step == "RUN":
            lines.append(f"sh -c {shlex.quote(rest)}")
        elif step == "WORKDIR":
            lines.append(f"mkdir -p {rest} && cd {rest}")
        elif step == "COPY":
            origin = "/stage" if words[0].startswith("--from=") else "/context/"
            source, target = words[-2:]
            lines.append(f"mkdir -p {target if target.endswith('/') or target == '.' else '$(dirname ' + target + ')'} && cp -r {origin}{source}{'/.' if source == '.' else ''} {target}")
    return "\n".join(lines)


def run(*command, **arguments):
    done = subprocess.run(command, capture_output=True, text=True, **arguments)
    assert done.returncode == 0, (command, done.stdout + done.stderr)
    return done.stdout


@sliced(6)
class Debian(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="trainerd-debian-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        # Fast compression: the package is not distributed.
        words = documented("deploy/README.md", "cd build/release && cpack -G DEB", {"build/release": BUILD})
        run(*words[3:], "--config", BUILD / "CPackConfig.cmake", "-B", cls.folder, "-D", "CPACK_DEBIAN_COMPRESSION_TYPE=gzip", cwd=BUILD)
        cls.package = next(cls.folder.glob("trainerd_*.deb"))
        cls.root = cls.folder / "root"
        run("dpkg-deb", "--extract", cls.package, cls.root)

    def field(self, name):
        return run("dpkg-deb", "--field", self.package, name).strip()

    def test_it_depends_on_the_libraries_that_the_executable_needs(self):
        self.assertEqual(self.field("Package"), "trainerd")
        depends = {entry.split()[0] for entry in self.field("Depends").split(",")}
        needed = run("ldd", self.root / "usr/bin/trainerd")
        self.assertNotIn("not found", needed)
        direct = re.findall(r"NEEDED.*\[(.*)\]", run("readelf", "-d", self.root / "usr/bin/trainerd"))
        self.assertGreater(len(direct), 8)
        for library in direct:
            owners = {line.split(":")[0] for line in run("dpkg-query", "--search", f"*/{library}").splitlines()}
            # A dependency may name a package by a name that it provides.
            owners |= set(re.findall(r"[\w.+-]+(?= \(|,|$)", run("dpkg-query", "--show", "--showformat=${Provides},", *owners)))
            self.assertTrue(owners & depends, (library, depends))

    def test_it_holds_what_debian_expects_where_debian_expects_it(self):
        for path in ("usr/bin/trainerd", "usr/share/trainerd/configs/quickstart.yaml", "usr/share/trainerd/deploy/slurm/trainerd.sbatch",
                     "usr/share/man/man1/trainerd-run.1.gz", "usr/share/man/man5/trainerd-job.5.gz", "usr/share/doc/trainerd/copyright",
                     "usr/share/doc/trainerd/changelog.gz", "usr/share/bash-completion/completions/trainerd",
                     "usr/share/zsh/vendor-completions/_trainerd", "usr/share/fish/vendor_completions.d/trainerd.fish"):
            self.assertTrue((self.root / path).is_file(), path)
        # No copies of Debian's libraries, and no files of the tests.
        self.assertEqual([path.name for path in (self.root / "usr/lib").iterdir()], ["systemd"])
        self.assertEqual(sorted(path.name for path in (self.root / "usr").iterdir()), ["bin", "lib", "share"])
        self.assertEqual([path.name for path in self.root.iterdir()], ["usr"])
        self.assertTrue((self.root / "usr/lib/systemd/system/trainerd@.service").is_file())
        self.assertIn(b".TH TRAINERD\\-RUN 1", gzip.decompress((self.root / "usr/share/man/man1/trainerd-run.1.gz").read_bytes()))
        for path in self.root.rglob("*"):
            self.assertEqual(path.stat().st_mode & 0o777, 0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644, path)

    @unittest.skipUnless(os.geteuid() == 0, "dpkg installs as root")
    def test_dpkg_installs_it_into_a_root_where_it_trains_and_takes_it_away(self):
        root = self.folder / "bare"
        (root / "var/lib/dpkg").mkdir(parents=True)
        for name in ("status", "available"):
            (root / "var/lib/dpkg" / name).touch()
        # The package uses this machine's libraries.
        dpkg = ["dpkg", f"--root={root}", "--force-depends", "--log=/dev/null"]
        run(*dpkg, "--install", self.package)
        binary = root / "usr/bin/trainerd"
        job = root / "usr/share/trainerd/configs/tiny.yaml"
        run(binary, "run", job, "--set", "steps=2", "--set", "optimizer.schedule.warmup=0", "--set", f"output={self.folder}/out", "--set", "metrics.listen=127.0.0.1:0")
        self.assertTrue((self.folder / "out/checkpoints/step-00000002/COMPLETE").exists())
        run(*dpkg, "--purge", "trainerd")
        self.assertFalse(binary.exists())

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("unshare"), "an overlay is made by root")
    def test_apt_installs_it_with_what_it_depends_on(self):
        for name in ("overlay", "package"):
            (self.folder / name).mkdir()
        shutil.copy(self.package, self.folder / "package")
        if subprocess.run(["unshare", "-m", "bash", "-c", OVERLAY, "bash", self.folder / "overlay", self.folder / "package", "true"], capture_output=True).returncode:
            self.skipTest("no overlay file system here")
        # The dependencies are installed, so that apt needs no network.
        inside = documented_line("deploy/README.md", "apt install") + """ --yes
dpkg-query --show --showformat='installed ${Status}\\n' trainerd
hash -r; command -v trainerd; cd /; trainerd --version; trainerd plan /usr/share/trainerd/configs/tiny.yaml"""
        said = run("unshare", "-m", "bash", "-c", OVERLAY, "bash", self.folder / "overlay", self.folder / "package", inside)
        self.assertIn("installed install ok installed", said)
        self.assertIn("\n/usr/bin/trainerd\n", said)
        self.assertIn(f"\ntrainerd {self.field('Version').split('-')[0]}", said)

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("unshare"), "an overlay is made by root")
    def test_the_steps_of_the_container_file_make_what_its_commands_start(self):
        """On this machine's Debian in place of debian:12-slim, and by a shell in place of an engine. The first stage, which builds, in
        tests/run.sh full; else its package is the one of this test."""
        for name in ("container", "context/package"):
            (self.folder / name).mkdir(parents=True)
        package = self.folder / "context"
        # The user that podman is told to take has no name in the image.
        user, work = "4242", package / "work"
        shutil.copytree(ROOT / "configs", work / "configs")
        build, image = container_steps()
        script = ["mkdir /stage /context", "cp -r /package /stage/given", "cd / && umount /package && rmdir /package", ": >/etc/apt/sources.list"]
        if FULL:
            listed = run("git", "-C", ROOT, "ls-files", "-z").split("\0")
            for name in filter(None, listed):
                (package / "sources" / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, package / "sources" / name)
            script += ["cp -r /stage/given/sources/. /context", as_script(build), "mv /package /stage/package"]
        else:
            shutil.copy(self.package, package / "package")
            script += ["mv /stage/given/package /stage/package"]
        script += [as_script(image), "cp -r /stage/given/work/. /work", f"chown -R {user} /work"]
        entry = json.loads(dict(image)["ENTRYPOINT"])
        as_user = f"setpriv --reuid={user} --regid={user} --clear-groups --"
        words = documented("deploy/README.md", "podman run")
        self.assertEqual(json.loads(dict(image)["CMD"]), ["--help"])
        self.assertEqual(words[words.index("trainerd") - 1].split(":")[1], dict(image)["WORKDIR"])
        started = [*entry, *words[words.index("trainerd") + 1:], *"--set steps=2 --set optimizer.schedule.warmup=0 --set batch.global=2 --set batch.micro=1 --set evaluate.batches=1".split()]
        script += ["cd /", f"setpriv --reuid={dict(image)['USER']} --init-groups -- {' '.join(entry)} --help", "command -v trainerd", f"cd /work && {as_user} {' '.join(started)}", "ls runs/quickstart/checkpoints"]
        if subprocess.run(["unshare", "-m", "bash", "-c", OVERLAY, "bash", self.folder / "container", package, "true"], capture_output=True).returncode:
            self.skipTest("no overlay file system here")
        said = run("unshare", "-m", "bash", "-c", OVERLAY, "bash", self.folder / "container", package, "\n".join(script))
        self.assertIn("Usage: trainerd", said)
        self.assertIn("\n/usr/bin/trainerd\n", said)
        self.assertRegex(said, r"\nstep-0+2\n$")


if __name__ == "__main__":
    unittest.main()
