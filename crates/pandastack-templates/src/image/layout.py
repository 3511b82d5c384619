# An image in the build files: an OCI layout, or what `docker save` writes.
import hashlib, json, os

from registry import CONFIG_BYTES_MAX, MANIFEST_BYTES_MAX, PIECE, Refused, digest_of


class Layout:
    """An image in a directory."""

    def __init__(self, wanted):
        self.root, self.name = os.path.realpath(wanted["layout"]), wanted["name"]
        self.first = None

    def path(self, name):
        """The path of a file of the image. Older archives have links from one layer to another."""
        found = os.path.realpath(os.path.join(self.root, name))
        if not found.startswith(self.root.rstrip("/") + "/"):
            raise Refused(f"`{name}` points outside of the image")
        return found

    def file(self, name, limit):
        try:
            with open(self.path(name), "rb") as file:
                data = file.read(limit + 1)
        except (OSError, ValueError):
            raise Refused(f"`{self.name}` has no file `{name}`")
        if len(data) > limit:
            raise Refused(f"`{name}` has more than {limit} bytes")
        return data

    def is_docker(self):
        """Whether it has only the older of the two forms."""
        if os.path.isfile(os.path.join(self.root, "index.json")):
            return False
        if os.path.isfile(os.path.join(self.root, "manifest.json")):
            return True
        raise Refused(
            f"`{self.name}` is neither an OCI layout (`index.json`) nor written by `docker save` "
            "(`manifest.json`)"
        )

    def blob(self, digest, limit):
        name = blob_name(digest)
        data = self.file(name, limit)
        if digest_of(data) != digest:
            raise Refused(f"`{name}` is {digest_of(data)}")
        return data

    def manifest(self, reference):
        """The index of the layout, or a manifest by its digest."""
        if reference is None:
            return self.file("index.json", MANIFEST_BYTES_MAX)
        return self.blob(reference, MANIFEST_BYTES_MAX)

    def config(self, part):
        return self.blob(part["digest"], CONFIG_BYTES_MAX)

    def layer(self, part, out):
        """Layers of `docker save` have no digest of their own: they are checked when they are unpacked."""
        name, summed = part.get("path") or blob_name(part["digest"]), hashlib.sha256()
        path = self.path(name)
        try:
            with open(path, "rb") as file:
                while "path" not in part and (piece := file.read(PIECE)):
                    summed.update(piece)
            os.link(path, out)
        except OSError as error:
            raise Refused(f"layer `{name}` cannot be read: {error.strerror}")
        if "path" not in part and "sha256:" + summed.hexdigest() != part["digest"]:
            raise Refused(f"`{name}` is sha256:{summed.hexdigest()}")

    def docker(self):
        """The only image of `docker save`. Its digest is that of its configuration."""
        try:
            images = json.loads(self.file("manifest.json", MANIFEST_BYTES_MAX))
            if not isinstance(images, list) or len(images) != 1:
                raise Refused(f"`{self.name}` has {len(images)} images; save one alone")
            config, names = str(images[0]["Config"]), [str(name) for name in images[0]["Layers"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise Refused(f"`manifest.json` of `{self.name}` is malformed")
        data = self.file(config, CONFIG_BYTES_MAX)
        sizes = [os.path.getsize(path) if os.path.isfile(path) else 0 for path in map(self.path, names)]
        layers = [{"path": name, "size": size} for name, size in zip(names, sizes)]
        return digest_of(data), data, layers


def blob_name(digest):
    return "blobs/" + digest.replace(":", "/")
