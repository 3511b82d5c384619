# Selects and packs what COPY and ADD copy. Runs in the machine that holds the files of a build.
# Standard input: one JSON object, see copy.rs. Standard output: one JSON object.
import fnmatch, hashlib, io, json, os, posixpath, re, shutil, stat, subprocess, sys, tarfile

BYTES_MAX = 8 << 30
# The server holds this list, see context.rs.
DIRECTORIES_BYTES_MAX = 8 << 20
FETCH_STALL_SECONDS_MAX = 60


class Refused(Exception):
    pass


def glob_names(root, pattern, is_context):
    """Paths below root that a pattern means, relative to it. A path without wildcards means itself."""
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    clean = []
    for part in parts:
        if part == "..":
            if clean:
                clean.pop()
        else:
            clean.append(part)
    found = [""]
    for index, part in enumerate(clean):
        wild = any(char in part for char in "*?[")
        following = []
        for path in found:
            if part == "**":
                for folder, names, _ in os.walk(os.path.join(root, path)):
                    relative = os.path.relpath(folder, root)
                    following.append("" if relative == "." else relative)
            elif wild:
                try:
                    names = sorted(os.listdir(inside(root, path)))
                except (NotADirectoryError, FileNotFoundError):
                    continue
                regex = re.compile(fnmatch.translate(part.replace("[^", "[!")))
                following += [posixpath.join(path, name) for name in names if regex.match(name)]
            else:
                following.append(posixpath.join(path, part))
        found = following
    wild = any(char in pattern for char in "*?[")
    existing = [path for path in dict.fromkeys(found) if os.path.lexists(inside(root, path))]
    if not existing:
        kind = "matches nothing" if wild else "is not there"
        where = "; check the path, and .dockerignore" if is_context else " in the stage that is copied from"
        raise Refused("`%s` %s%s" % (pattern, kind, where))
    return existing


def inside(root, path):
    """Resolves a path. A link on the way is followed as if root were /, so that none leads out of it."""
    at, seen = "", 0
    rest = [part for part in path.split("/") if part]
    while rest:
        part = rest.pop(0)
        if part == "..":
            at = posixpath.dirname(at)
            continue
        full = os.path.join(root, at, part)
        if rest and os.path.islink(full):
            seen += 1
            if seen > 40:
                raise Refused("`%s` has too many links" % path)
            target = os.readlink(full)
            if target.startswith("/"):
                at = ""
            rest = [p for p in target.split("/") if p not in ("", ".")] + rest
            continue
        at = posixpath.join(at, part)
    return os.path.join(root, at) if at else root


def resolved(root, path):
    """A source that is a link is what it leads to."""
    for _ in range(40):
        full = inside(root, path)
        if not os.path.islink(full):
            return full
        target = os.readlink(full)
        relative = os.path.relpath(os.path.dirname(full), root)
        path = target if target.startswith("/") else posixpath.normpath(posixpath.join(relative, target))
        path = path.lstrip("/")
    raise Refused("`%s` has too many links" % path)


def unpacked(scratch, full, name):
    """The directory with the content of an archive, which is unpacked once."""
    info = os.stat(full)
    key = repr((full, info.st_size, info.st_mtime_ns)).encode("utf-8", "surrogateescape")
    folder = os.path.join(scratch, hashlib.sha256(key).hexdigest())
    if not os.path.isdir(folder):
        part = folder + ".part"
        shutil.rmtree(part, ignore_errors=True)
        os.makedirs(part)
        command = ["tar", "-x", "--numeric-owner", "-f", full, "-C", part]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if "Removing leading" not in line]
            why = (lines or ["no reason given"])[0].removeprefix("tar: ")
            raise Refused("`%s` cannot be unpacked: %s" % (name, why[:300]))
        os.rename(part, folder)
    return folder


def fetched(scratch, url, checksum):
    """The file of a URL, which is fetched once."""
    import urllib.parse, urllib.request
    name = posixpath.basename(urllib.parse.unquote(urllib.parse.urlsplit(url).path))
    if name in ("", ".", "..") or "\0" in name:
        raise Refused("`%s` does not end in a file name" % url)
    path = os.path.join(scratch, hashlib.sha256(url.encode()).hexdigest(), name)
    if not os.path.exists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            with urllib.request.urlopen(url, timeout=FETCH_STALL_SECONDS_MAX) as answer:
                store(answer, path, url)
        except (OSError, ValueError) as error:
            raise Refused("cannot fetch `%s`: %s" % (url, error))
    if checksum:
        with open(path, "rb") as file:
            found = "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
        if found != checksum:
            raise Refused("`%s` has the digest %s, not %s" % (url, found, checksum))
    return name, path


def store(answer, path, url):
    size = 0
    with open(path + ".part", "wb") as file:
        os.fchmod(file.fileno(), 0o600)
        while chunk := answer.read(1 << 20):
            size += len(chunk)
            if size > BYTES_MAX:
                raise Refused("`%s` has more than %d bytes" % (url, BYTES_MAX))
            file.write(chunk)
    os.rename(path + ".part", path)


def ignore_rules(root):
    """The patterns of .dockerignore, each with whether it brings files back."""
    try:
        with open(os.path.join(root, ".dockerignore"), encoding="utf-8-sig", errors="replace") as file:
            lines = [line.strip() for line in file]
    except OSError:
        return []
    rules = []
    for line in lines:
        if not line or line.startswith("#"):
            continue
        keep, pattern = line.startswith("!"), line.lstrip("!").strip()
        parts = [part for part in posixpath.normpath("/" + pattern).split("/") if part]
        if not parts:
            continue
        regex = ""
        for index, part in enumerate(parts):
            last = index == len(parts) - 1
            if part == "**":
                regex += ".*" if last else "(?:.*/)?"
            else:
                regex += name_regex(part) + ("" if last else "/")
        rules.append((keep, re.compile("(?:%s)(?:/.*)?" % regex, re.S)))
    return rules


def name_regex(part):
    """One part of a pattern; its wildcards stay within a name."""
    out, at = "", 0
    while at < len(part):
        char = part[at]
        if char == "*":
            out += "[^/]*"
        elif char == "?":
            out += "[^/]"
        elif char == "[" and "]" in part[at + 2:]:
            end = part.index("]", at + 2)
            inner = part[at + 1:end].replace("\\", "\\\\")
            inner = "^" + inner[1:] if inner[0] in "^!" else inner
            out += "[%s]" % inner
            at = end
        elif char == "\\" and at + 1 < len(part):
            at += 1
            out += re.escape(part[at])
        else:
            out += re.escape(char)
        at += 1
    return out


def entries(wanted):
    """(path below the destination, file, attributes) of everything that is copied, parents first."""
    root = wanted["root"]
    excluded = [re.compile(fnmatch.translate(pattern.strip("/"))) for pattern in wanted["exclude"]]
    rules = ignore_rules(root) if wanted["is_context"] else []
    listed = []

    def is_out(relative):
        return any(regex.match(relative) or regex.match(posixpath.basename(relative)) for regex in excluded)

    def is_ignored(full):
        path, ignored = os.path.relpath(full, root), False
        for keep, regex in rules:
            if keep == ignored and regex.fullmatch(path):
                ignored = not keep
        return ignored

    may_keep = any(keep for keep, _ in rules)

    def is_wanted(path):
        full = inside(root, path)
        return not path or not is_ignored(full) or (may_keep and os.path.isdir(full))

    def add(relative, full):
        info = os.lstat(full)
        if stat.S_ISDIR(info.st_mode) or stat.S_ISREG(info.st_mode) or stat.S_ISLNK(info.st_mode):
            listed.append((relative, full, info))
        else:
            raise Refused("`%s` is a device, a pipe or a socket, which cannot be copied" % full[len(root):])

    sources = []
    for pattern in wanted["sources"]:
        named = [path for path in glob_names(root, pattern, wanted["is_context"]) if is_wanted(path)]
        if not named:
            raise Refused("`%s` is excluded by .dockerignore" % pattern)
        sources += named
    fetches = [fetched(wanted["scratch"], url, wanted["checksum"]) for url in wanted["urls"]]
    into_directory = wanted["dest_is_dir"] or len(sources) + len(fetches) > 1
    for name, full in fetches:
        add(name if into_directory else wanted["file_name"], full)
    trees = False
    for source in sources:
        full = inside(root, source) if wanted["keep_links"] else resolved(root, source)
        if not os.path.lexists(full):
            raise Refused("`%s` is a link to nothing" % source)
        prefix = posixpath.dirname(source) if wanted["parents"] else ""
        if wanted["unpack"] and os.path.isfile(full) and tarfile.is_tarfile(full):
            full = unpacked(wanted["scratch"], full, source)
        if os.path.isdir(full) and not os.path.islink(full):
            trees = True
            base = posixpath.join(prefix, posixpath.basename(source)) if wanted["parents"] else ""
            if base:
                add(base, full)
            for folder, names, files in os.walk(full):
                names.sort()
                inner = os.path.relpath(folder, full)
                inner = "" if inner == "." else inner
                for name in sorted(names + files):
                    relative, here = posixpath.join(inner, name), os.path.join(folder, name)
                    if is_out(relative):
                        if name in names:
                            names.remove(name)
                        continue
                    if is_ignored(here):
                        # Something below it may be wanted all the same.
                        if name in names and not may_keep:
                            names.remove(name)
                        continue
                    add(posixpath.join(base, relative), here)
        elif not is_out(posixpath.basename(source)):
            name = posixpath.join(prefix, posixpath.basename(source))
            add(name if into_directory or wanted["parents"] else wanted["file_name"], full)
    for name, text in wanted["heredocs"]:
        as_named = into_directory or len(wanted["heredocs"]) > 1
        listed.append((name if as_named else wanted["file_name"], text, None))
    return listed, trees


def sum_of(listed, preserve):
    total, size = hashlib.sha256(), 0
    for relative, full, info in listed:
        if info is None:
            total.update(repr((relative, "text", full)).encode())
            continue
        owner = (info.st_uid, info.st_gid) if preserve else ()
        total.update(repr((relative, info.st_mode, owner)).encode("utf-8", "surrogateescape"))
        if stat.S_ISLNK(info.st_mode):
            total.update(os.readlink(full).encode("utf-8", "surrogateescape"))
        elif stat.S_ISREG(info.st_mode):
            size += info.st_size
            if size > BYTES_MAX:
                raise Refused("more than %d bytes are to be copied, reached at `%s`" % (BYTES_MAX, relative))
            with open(full, "rb") as file:
                while chunk := file.read(1 << 20):
                    total.update(chunk)
    return total.hexdigest(), size


def owner_of(info, preserve):
    return "%d:%d" % (info.st_uid, info.st_gid) if preserve and info else ""


def directories(listed, preserve, mode):
    return [
        {"path": path, "mode": stat.S_IMODE(info.st_mode) if mode is None else mode,
         "owner": owner_of(info, preserve)}
        for path, _, info in listed if info and stat.S_ISDIR(info.st_mode) and is_text(path)
    ]


def is_text(path):
    """Whether JSON can have a path: not every name is UTF-8."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def by_owner(listed, preserve):
    """(owner, entries) in the order to unpack: an archive belongs to one owner, and so do the directories
    that unpacking makes on the way. So directories come first, parents before what is in them."""
    groups, files = [], {}
    for entry in listed:
        info = entry[2]
        owner = owner_of(info, preserve)
        if not (info and stat.S_ISDIR(info.st_mode)):
            files.setdefault(owner, []).append(entry)
        elif groups and groups[-1][0] == owner:
            groups[-1][1].append(entry)
        else:
            groups.append((owner, [entry]))
    return groups + list(files.items())


def special_modes(listed, mode):
    """[path, mode] of what has a set-id bit, which unpacking drops."""
    special = []
    for relative, _, info in listed:
        if info and stat.S_ISLNK(info.st_mode):
            continue
        bits = mode if mode is not None else stat.S_IMODE(info.st_mode) if info else 0
        if bits & 0o6000:
            special.append([relative, bits])
    return special


def pack(wanted, listed):
    """Archives of one owner each; returns their owners and paths."""
    preserve, mode = wanted["preserve"], wanted["mode"]
    os.makedirs(wanted["out"], exist_ok=True)
    archives = []
    for number, (owner, members) in enumerate(by_owner(listed, preserve)):
        path = os.path.join(wanted["out"], "%d.tar" % number)
        with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
            for relative, full, info in members:
                if info is None:
                    data = full.encode()
                    header = tarfile.TarInfo(relative)
                    header.size, header.mode = len(data), 0o644 if mode is None else mode
                    archive.addfile(header, io.BytesIO(data))
                    continue
                header = tarfile.TarInfo(relative)
                header.mtime = int(info.st_mtime)
                header.mode = stat.S_IMODE(info.st_mode)
                if stat.S_ISLNK(info.st_mode):
                    header.type, header.linkname = tarfile.SYMTYPE, os.readlink(full)
                    archive.addfile(header)
                elif stat.S_ISDIR(info.st_mode):
                    header.type = tarfile.DIRTYPE
                    header.mode = header.mode if mode is None else mode
                    archive.addfile(header)
                else:
                    header.size = info.st_size
                    header.mode = header.mode if mode is None else mode
                    with open(full, "rb") as file:
                        archive.addfile(header, file)
        archives.append({"owner": owner, "path": path})
    return archives


def main():
    wanted = json.load(sys.stdin)
    try:
        listed, trees = entries(wanted)
        answer = {"is_tree": trees}
        if wanted["out"]:
            answer["archives"] = pack(wanted, listed)
            answer["special"] = special_modes(listed, wanted["mode"])
            found = directories(listed, wanted["preserve"], wanted["mode"])
            if found:
                answer["directories"] = os.path.join(wanted["out"], "directories.json")
                text = json.dumps(found, separators=(",", ":"))
                if len(text) > DIRECTORIES_BYTES_MAX:
                    raise Refused("%d directories are too many for one instruction; use several" % len(found))
                with open(answer["directories"], "w") as file:
                    file.write(text)
        else:
            answer["sum"], answer["bytes"] = sum_of(listed, wanted["preserve"])
        answer["entries"] = len(listed)
    except Refused as refused:
        answer = {"error": str(refused)}
    except OSError as error:
        answer = {"error": "cannot copy: %s" % error}
    print(json.dumps(answer))


main()
