"""Unpacking layers: whiteouts, owners, modes, links, and archives that try to get out."""

import gzip, hashlib, io, os, shutil, stat, subprocess, sys, tarfile, tempfile, unittest

SCRIPT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", "src", "image", "unpack.py"))
KINDS = {"dir": tarfile.DIRTYPE, "link": tarfile.SYMTYPE, "hard": tarfile.LNKTYPE, "char": tarfile.CHRTYPE,
         "fifo": tarfile.FIFOTYPE, "file": tarfile.REGTYPE}


def entry(name, kind="file", text="", mode=None, owner=(0, 0), mtime=1000, **pax):
    return name, kind, text, mode, owner, mtime, pax


def tar_of(entries):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, kind, text, mode, owner, mtime, pax in entries:
            made = tarfile.TarInfo(name)
            made.type, made.mtime, (made.uid, made.gid) = KINDS[kind], mtime, owner
            made.mode = mode if mode is not None else (0o755 if kind == "dir" else 0o644)
            made.pax_headers = {key.replace("__", "."): value for key, value in pax.items()}
            data = text.encode() if kind == "file" else b""
            made.size, made.linkname = len(data), text if kind in ("link", "hard") else ""
            archive.addfile(made, io.BytesIO(data))
    return content.getvalue()


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder, self.root = folder.name, os.path.join(folder.name, "root")

    def run_layer(self, data, expected=None, packed=None):
        file = os.path.join(self.folder, "layer")
        with open(file, "wb") as out:
            out.write(data if packed is None else packed)
        expected = expected or "sha256:" + hashlib.sha256(data).hexdigest()
        argv = [sys.executable, "-I", "-S", "-B", "-X", "utf8", SCRIPT, "layer", file, expected]
        # -I ignores variables of Python only.
        done = subprocess.run(argv, env={"PANDASTACK_IMAGE_DIR": self.folder}, capture_output=True, text=True)
        self.assertEqual(done.stderr, "")
        return done.returncode, done.stdout.strip()

    def apply(self, *entries):
        self.assertEqual(self.run_layer(tar_of(entries)), (0, ""))

    def refused(self, text, *entries):
        code, why = self.run_layer(tar_of(entries))
        self.assertEqual(code, 1)
        self.assertIn(text, why)

    def tree(self):
        found = []
        for folder, folders, files in os.walk(self.root):
            found += [os.path.relpath(os.path.join(folder, name), self.root) for name in folders + files]
        return sorted(found)

    def stat(self, name):
        return os.lstat(os.path.join(self.root, name))

    def read(self, name):
        with open(os.path.join(self.root, name)) as file:
            return file.read()


@unittest.skipIf(os.geteuid() != 0, "only root can change its root directory")
class Layers(Case):
    def test_owners_modes_links_and_times(self):
        self.apply(
            entry("./", "dir", mode=0o711), entry("./a/", "dir", mode=0o2750, owner=(7, 8), mtime=5),
            entry("./a/tool", text="x", mode=0o4755, owner=(1000, 1001), mtime=9),
            entry("a/same", "hard", "a/tool"), entry("a/up", "link", "../../../etc/passwd"),
            entry("a/pipe", "fifo", mode=0o600),
            entry("b/c/deep", text="y"), entry("a/\u00fc", text="z"),
        )
        inside = ["a/pipe", "a/same", "a/tool", "a/up", "a/\u00fc"]
        self.assertEqual(self.tree(), ["a", *inside, "b", "b/c", "b/c/deep"])
        tool, folder = self.stat("a/tool"), self.stat("a")
        shown = [(one.st_uid, one.st_gid, stat.S_IMODE(one.st_mode), one.st_mtime) for one in (tool, folder)]
        self.assertEqual(shown, [(1000, 1001, 0o4755, 9), (7, 8, 0o2750, 5)])
        self.assertEqual((tool.st_nlink, self.stat("a/same").st_ino), (2, tool.st_ino))
        self.assertEqual(os.readlink(os.path.join(self.root, "a/up")), "../../../etc/passwd")
        self.assertEqual(stat.S_IMODE(os.stat(self.root).st_mode), 0o711)
        self.assertTrue(stat.S_ISFIFO(self.stat("a/pipe").st_mode))

    def test_later_layers_replace(self):
        self.apply(entry("a/b", text="1"), entry("a/c"), entry("d", "link", "a"), entry("e/f"))
        self.apply(
            entry("a", "dir", mode=0o700), entry("a/b", "dir"), entry("a/b/x", text="4"), entry("d", "dir"),
            entry("e", text="5"), entry("a/c", "link", "b"),
        )
        self.assertEqual(self.tree(), ["a", "a/b", "a/b/x", "a/c", "d", "e"])
        self.assertEqual((os.readlink(os.path.join(self.root, "a/c")), self.read("e")), ("b", "5"))

    def test_whiteouts_delete_what_is_older(self):
        self.apply(entry("a/old"), entry("a/keep"), entry("b/c/old"), entry("f"))
        self.apply(
            entry("a/.wh.old"), entry("b", "dir"), entry("b/new"), entry(".wh.b"), entry(".wh.nothing"),
            entry("f", text="new"), entry(".wh.f"), entry(".wh..wh.plnk", "dir"),
        )
        self.assertEqual(self.tree(), ["a", "a/keep", "b", "b/new", "f"])

    def test_opaque_directories_hide_what_is_older(self):
        self.apply(entry("usr/lib/old"), entry("usr/lib/d/old"), entry("lib", "link", "usr/lib"))
        self.apply(entry("lib/new"), entry("lib/d/new"), entry("usr/lib/.wh..wh..opq"))
        self.assertEqual(self.tree(), ["lib", "usr", "usr/lib", "usr/lib/d", "usr/lib/d/new", "usr/lib/new"])
        self.apply(entry(".wh..wh..opq"), entry("only", text=""))
        self.assertEqual(self.tree(), ["only"])

    def test_links_do_not_lead_out(self):
        outside = os.path.join(self.folder, "outside")
        os.mkdir(outside)
        up = "../" * 20 + outside.lstrip("/")
        self.apply(entry("abs", "link", outside), entry("rel", "link", up))
        self.apply(entry("abs/a", text="x"), entry("rel/b", text="y"), entry("abs/.wh.gone"))
        self.assertEqual(os.listdir(outside), [])
        self.assertEqual(self.read(outside.lstrip("/") + "/a"), "x")
        for name in ("../x", "a/../../x", ".wh..", "a/.wh...", ".wh."):
            self.refused("outside" if ".wh" not in name else "malformed whiteout", entry(name, text=""))
        self.refused("points outside", entry("h", "hard", "../../etc/passwd"))
        self.refused("cannot link `h` to `/nothing`", entry("h", "hard", "nothing"))
        self.refused("is below something", entry("f", text=""), entry("f/g", text=""))

    def test_devices_and_special_files(self):
        self.apply(entry("dev/null", "char"), entry("dev/x", text=""))
        self.assertFalse(os.path.lexists(os.path.join(self.root, "dev/null")))
        self.refused("has the device `etc/null`", entry("etc/null", "char"))

    def test_attributes_are_kept(self):
        self.apply(entry("f", text="", SCHILY__xattr__user__note="hello", SCHILY__xattr__trusted__x="no"))
        try:
            self.assertEqual(os.listxattr(os.path.join(self.root, "f")), ["user.note"])
        except OSError as error:
            self.skipTest(f"this file system has no attributes: {error}")

    def test_sparse_files_stay_sparse_and_huge_ones_are_refused(self):
        path = os.path.join(self.folder, "sparse")
        with open(path, "wb") as file:
            file.seek(64 << 20)
            file.write(b"end")
        argv = ["tar", "-C", self.folder, "--format=pax", "-S", "-cf", "-", "sparse"]
        data = subprocess.run(argv, check=True, capture_output=True).stdout
        self.assertLess(len(data), 1 << 20)
        self.assertEqual(self.run_layer(data), (0, ""))
        made = self.stat("sparse")
        self.assertEqual(made.st_size, (64 << 20) + 3)
        self.assertLess(made.st_blocks * 512, 1 << 20)
        os.truncate(path, 1 << 43)
        data = subprocess.run(argv, check=True, capture_output=True).stdout
        code, why = self.run_layer(data)
        self.assertEqual(code, 1)
        self.assertIn("`/sparse` has 8796093022208 bytes, more than the machine's disk", why)

    def test_compressions_and_sums(self):
        data = tar_of([entry("f", text="x" * 100_000)])
        middle = len(data) // 2
        members = gzip.compress(data[:middle]) + gzip.compress(data[middle:]) + b"\0" * 512
        packings = [gzip.compress(data), members]
        if shutil.which("zstd"):
            zstd = subprocess.run(["zstd", "-qc"], input=data, check=True, capture_output=True)
            packings.append(zstd.stdout)
        for packed in packings:
            shutil.rmtree(self.root, ignore_errors=True)
            self.assertEqual(self.run_layer(data, packed=packed), (0, ""))
            self.assertEqual(self.read("f"), "x" * 100_000)
        code, why = self.run_layer(data, expected="sha256:" + "0" * 64)
        self.assertIn("and the image's configuration says sha256:000", why)
        for broken, text in [
            (gzip.compress(data)[:-20], "malformed"), (gzip.compress(data)[:-8] + b"12345678", "malformed"),
            (b"no archive at all", "malformed"), (data[:-90_000], "cut off"), (data[:2000], "cut off"),
        ]:
            code, why = self.run_layer(data, packed=broken)
            self.assertEqual(code, 1)
            self.assertIn(text, why)


if __name__ == "__main__":
    unittest.main()
