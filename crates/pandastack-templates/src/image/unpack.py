# Unpacks the layers of an image, and makes the result the root of the machine that this runs in: a builder
# machine, with nothing of the host and no credentials.
#
#   unpack.py layer FILE SUM   applies a layer to the tree in ROOT; SUM is that of the uncompressed archive
#   unpack.py install          puts the tree in the place of the machine's own files
#
# Prints why it failed, and exits with 1 then.
import errno, gzip, hashlib, os, shutil, stat, subprocess, sys, tarfile, zlib

WORK = os.environ.get("PANDASTACK_IMAGE_DIR", "/.pandastack-image")
ROOT = WORK + "/root"
PIECE = 1 << 20
# Beyond it, a layer is refused.
ENTRIES_MAX = 1_000_000
WHITEOUT, OPAQUE, OTHER_MARK = b".wh.", b".wh..wh..opq", b".wh..wh."
# The machine mounts its own here; what an image has there is left out, but for /run.
MOUNTED = ("dev", "proc", "sys", "run")
# Attributes of file systems and security modules that a machine does not have.
XATTRS_DROPPED = ("trusted.", "security.selinux", "security.ima", "security.evm", "system.")
# Errors that hostile archives cause in the standard library.
MALFORMED = (
    tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, ValueError, OverflowError, RecursionError,
)


class Refused(Exception):
    """Why an image cannot be unpacked, in a sentence."""


def shown(path):
    return os.fsdecode(path).encode("unicode_escape").decode()[:200]


class Archive:
    """The uncompressed bytes of a layer, summed as they are read."""

    def __init__(self, file):
        self.summed, self.child, self.file = hashlib.sha256(), None, file
        first = file.peek(4)[:4]
        if first[:2] == b"\x1f\x8b":
            self.file = gzip.GzipFile(fileobj=file)
        elif first == b"\x28\xb5\x2f\xfd":
            os.lseek(file.fileno(), 0, os.SEEK_SET)
            self.child = subprocess.Popen(["zstd", "-dcq"], stdin=file, stdout=subprocess.PIPE)
            self.file = self.child.stdout

    def read(self, size):
        data = self.file.read(size)
        self.summed.update(data)
        return data

    def end(self, expected):
        """Reads the rest and compares the sum."""
        while self.read(PIECE):
            pass
        if self.child and self.child.wait() != 0:
            raise Refused("a layer is not valid zstd")
        real = "sha256:" + self.summed.hexdigest()
        if real != expected:
            raise Refused(f"a layer is {real}, and the image's configuration says {expected}")


class Tree:
    """The tree that the layer changes. It is the root of this process, so that no link leads out of it."""

    def __init__(self):
        self.written, self.places, self.folders = set(), {}, {}

    def place(self, path):
        """Where a path of the archive really is: links of directories above it are followed. Those that are
        missing are made."""
        folder, _, name = path.rpartition(b"/")
        found = self.places.get(folder)
        if found is None:
            found = os.path.realpath(b"/" + folder)
            if not os.path.isdir(found):
                if os.path.lexists(found):
                    raise Refused(f"`{shown(path)}` is below something that is not a directory")
                os.makedirs(found, 0o755)
            self.places[folder] = found
        return found.rstrip(b"/") + b"/" + name

    def forget_places(self):
        self.places.clear()

    def remove_older(self, path):
        """Deletes what earlier layers have at a path, and keeps what this layer has below it."""
        try:
            is_folder = stat.S_ISDIR(os.lstat(path).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return
        if not is_folder:
            if path not in self.written:
                os.unlink(path)
            return
        for name in os.listdir(path):
            self.remove_older(path.rstrip(b"/") + b"/" + name)
        if path not in self.written and path != b"/" and not os.listdir(path):
            os.rmdir(path)
            self.forget_places()

    def make_way(self, path, is_folder):
        """Deletes what is at a path; a directory stays if it is to be one."""
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            return
        if stat.S_ISDIR(mode):
            if is_folder:
                return
            shutil.rmtree(path)
        else:
            os.unlink(path)
        self.forget_places()


def clean(name):
    """A path of the archive, relative to the root."""
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    if b".." in parts or b"\0" in name:
        raise Refused(f"the layer has the path `{shown(name)}`, which points outside of it")
    return b"/".join(parts)


def apply_whiteout(tree, path):
    """Deletes what the entry says is gone from earlier layers. False if it is an ordinary entry."""
    folder, _, name = path.rpartition(b"/")
    if not name.startswith(WHITEOUT):
        return False
    if name == OPAQUE:
        inside = tree.place(folder + b"/x" if folder else b"x")[:-2] or b"/"
        for child in os.listdir(inside):
            tree.remove_older(inside.rstrip(b"/") + b"/" + child)
        return True
    if name.startswith(OTHER_MARK):
        return True
    gone = name[len(WHITEOUT):]
    if gone in (b"", b".", b".."):
        raise Refused(f"the layer has the malformed whiteout `{shown(path)}`")
    tree.remove_older(tree.place(folder + b"/" + gone if folder else gone))
    return True


def copy(archive, file, size):
    while size > 0:
        piece = archive.read(min(size, PIECE))
        if not piece:
            raise Refused("a layer is cut off")
        file.write(piece)
        size -= len(piece)


def write_file(tar, member, path, disk):
    if member.size > disk:
        raise Refused(f"file `{shown(path)}` has {member.size} bytes, more than the machine's disk")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        tar.fileobj.seek(member.offset_data)
        if member.sparse is None:
            copy(tar.fileobj, file, member.size)
        else:
            for offset, size in member.sparse:
                file.seek(offset)
                copy(tar.fileobj, file, size)
            file.truncate(member.size)


def write_entry(tar, tree, member, disk):
    """Makes what an entry describes. False if it is left out."""
    relative = clean(os.fsencode(member.name))
    if relative == b"":
        path = b"/"
    elif apply_whiteout(tree, relative):
        return
    else:
        path = tree.place(relative)
    if member.ischr() or member.isblk():
        if relative.startswith(b"dev/"):
            return
        raise Refused(f"the layer has the device `{shown(relative)}`; machines have their own below /dev")
    if path != b"/":
        tree.make_way(path, member.isdir())
    if member.isdir():
        if path != b"/" and not os.path.isdir(path):
            os.mkdir(path, 0o700)
        tree.folders[path] = member.mtime
    elif member.islnk():
        target = tree.place(clean(os.fsencode(member.linkname)))
        try:
            os.link(target, path, follow_symlinks=False)
        except OSError as error:
            why = f"cannot link `{shown(relative)}` to `{shown(target)}`: {error.strerror}"
            raise Refused(why)
    elif member.issym():
        os.symlink(os.fsencode(member.linkname), path)
        tree.forget_places()
    elif member.isfifo():
        os.mkfifo(path, 0o600)
    elif member.isreg():
        write_file(tar, member, path, disk)
    else:
        raise Refused(f"entry `{shown(relative)}` of the layer has the unknown type {member.type!r}")
    tree.written.add(path)
    if not member.islnk():
        set_attributes(member, path)


def set_attributes(member, path):
    """The owner first: a change of it drops set-id bits and capabilities."""
    os.chown(path, member.uid, member.gid, follow_symlinks=False)
    if not member.issym():
        os.chmod(path, stat.S_IMODE(member.mode))
    for name, value in member.pax_headers.items():
        key = name.removeprefix("SCHILY.xattr.")
        if key != name and not key.startswith(XATTRS_DROPPED):
            try:
                os.setxattr(path, key, value.encode("utf-8", "surrogateescape"), follow_symlinks=False)
            except OSError as error:
                if error.errno not in (errno.ENOTSUP, errno.EPERM):
                    raise
    set_time(path, member.mtime)


def set_time(path, mtime):
    at = max(0, int(mtime * 1_000_000_000))
    os.utime(path, ns=(at, at), follow_symlinks=False)


def apply_layer(archive, disk):
    """Applies an archive to the tree, which is the root of this process."""
    tree, count = Tree(), 0
    options = {"bufsize": PIECE, "encoding": "utf-8", "errors": "surrogateescape"}
    with tarfile.open(fileobj=archive, mode="r|", **options) as tar:
        while (member := tar.next()) is not None:
            count += 1
            if count > ENTRIES_MAX:
                raise Refused(f"a layer has more than {ENTRIES_MAX} entries")
            # Otherwise it would remember them all.
            tar.members = []
            write_entry(tar, tree, member, disk)
    for path, mtime in tree.folders.items():
        if os.path.isdir(path) and not os.path.islink(path):
            set_time(path, mtime)


def layer(file_name, expected):
    os.makedirs(ROOT, 0o755, exist_ok=True)
    stats = os.statvfs(ROOT)
    with open(file_name, "rb") as file:
        archive = Archive(file)
        # Nothing of the tree is ever loaded as a module.
        shown(b"")
        sys.path.clear()
        os.chroot(ROOT)
        os.chdir("/")
        os.umask(0)
        apply_layer(archive, stats.f_blocks * stats.f_frsize)
        archive.end(expected)


def install():
    """From the first rename on, nothing can be loaded from the disk any more, so nothing is."""
    os.makedirs(ROOT, 0o755, exist_ok=True)
    if os.path.isdir(ROOT + "/run") and not os.path.islink(ROOT + "/run"):
        if subprocess.run(["cp", "-a", "-T", ROOT + "/run", "/run"]).returncode != 0:
            raise Refused("the image's /run cannot be copied")
    root, old = os.stat(ROOT), WORK + "/old"
    os.mkdir(old)
    kept = {*MOUNTED, os.path.basename(WORK), "lost+found"}
    for name in set(os.listdir("/")) - kept:
        os.rename("/" + name, f"{old}/{name}")
    for name in set(os.listdir(ROOT)) - kept:
        os.rename(f"{ROOT}/{name}", "/" + name)
    os.chown("/", root.st_uid, root.st_gid)
    os.chmod("/", stat.S_IMODE(root.st_mode))
    # The guest program writes names below /etc, and programs expect /tmp.
    for path, mode in (("/etc", 0o755), ("/tmp", 0o1777)):
        if not os.path.lexists(path):
            os.mkdir(path)
            os.chmod(path, mode)
    shutil.rmtree(WORK)
    os.sync()
    # Pages of deleted files would be saved with the machine.
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("3")


def main(words):
    try:
        layer(*words[1:]) if words[0] == "layer" else install()
    except Refused as error:
        why = str(error)
    except MALFORMED as error:
        why = f"a layer is malformed: {error}"
    except OSError as error:
        place = f" `{shown(os.fsencode(error.filename))}`" if error.filename else ""
        why = f"cannot unpack{place}: {error.strerror}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            why = "the image does not fit on the machine's disk"
    else:
        return 0
    print(" ".join(why.split()))
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
