# Finds a container image in a registry or in files, checks it, and fetches its layers.
# Standard input: one JSON object, see fetch.rs. `resolve` prints one JSON object. `fetch` prints its
# progress, and if it fails, the reason as its last line.
import json, os, shutil, sys

from layout import Layout
from registry import DIGEST, Refused, Registry, Unreachable, digest_of, parse_json

ARCHITECTURE, SYSTEM = "amd64", "linux"
# Beyond these, an image is refused.
LAYERS_MAX = 200
SETTINGS_BYTES_MAX = 256 << 10
NESTING_MAX = 3

CONFIG_TYPES = (
    "application/vnd.oci.image.config.v1+json",
    "application/vnd.docker.container.image.v1+json",
)


def mib(size):
    return f"{size / (1 << 20):.1f} MiB"


def descriptor(value, what):
    """The digest and size of a part of an image."""
    if not isinstance(value, dict) or not DIGEST.fullmatch(str(value.get("digest"))):
        raise Refused(f"{what} has no sha256 digest")
    size = value.get("size")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise Refused(f"{what} has no size")
    return {"digest": value["digest"], "size": size, "type": str(value.get("mediaType", ""))}


def platform_of(entry):
    platform = entry.get("platform")
    platform = platform if isinstance(platform, dict) else {}
    variant = f"/{platform['variant']}" if platform.get("variant") else ""
    return f"{platform.get('os', 'unknown')}/{platform.get('architecture', 'unknown')}{variant}"


def choose(index, name, is_file):
    """The entry of an index for our machines. Entries for unknown platforms are notes about the others."""
    entries = index["manifests"] if isinstance(index["manifests"], list) else []
    entries = [entry for entry in entries if isinstance(entry, dict)]
    fitting = [entry for entry in entries if platform_of(entry).split("/")[:2] == [SYSTEM, ARCHITECTURE]]
    if is_file and not fitting:
        # The index of a layout need not name platforms; the configuration does.
        fitting = [entry for entry in entries if "platform" not in entry]
    if is_file and len(fitting) > 1:
        raise Refused(f"`{name}` has {len(fitting)} images; save one alone")
    if fitting:
        return fitting[0]
    others = sorted({platform_of(entry) for entry in entries} - {"unknown/unknown"})
    platforms = ", ".join(others[:12])[:300] or "no platform"
    raise Refused(f"image `{name}` is for {platforms}; machines are {SYSTEM}/{ARCHITECTURE}")


def find(source):
    """The manifest for our machines: its digest, its configuration and its layers."""
    if isinstance(source, Layout) and source.is_docker():
        return source.docker()
    reference, name = source.first, source.name
    for _ in range(NESTING_MAX):
        data = source.manifest(reference)
        manifest = parse_json(data, f"the manifest of `{name}`")
        if "manifests" in manifest and "layers" in manifest:
            raise Refused(f"the manifest of `{name}` is both an index and an image")
        if "manifests" in manifest:
            entry = choose(manifest, name, isinstance(source, Layout))
            reference = descriptor(entry, f"an entry of the index of `{name}`")["digest"]
            continue
        if "fsLayers" in manifest:
            raise Refused(f"image `{name}` has an obsolete manifest (schema 1); push it again")
        return manifest_parts(source, manifest, data)
    raise Refused(f"the index of `{name}` is nested too deeply")


def manifest_parts(source, manifest, data):
    name = source.name
    config = descriptor(manifest.get("config"), f"the configuration of `{name}`")
    if config["type"] not in CONFIG_TYPES:
        kind = config["type"][:100] or "an unknown type"
        raise Refused(f"`{name}` is not a container image, but has the type {kind}")
    entries = manifest.get("layers")
    if not isinstance(entries, list) or len(entries) > LAYERS_MAX:
        raise Refused(f"image `{name}` has no list of at most {LAYERS_MAX} layers")
    layers = [descriptor(entry, f"a layer of `{name}`") for entry in entries]
    for layer in layers:
        if ".foreign." in layer["type"] or ".nondistributable." in layer["type"]:
            raise Refused(f"layer {layer['digest']} of `{name}` is not distributed by registries")
    return digest_of(data), source.config(config), layers


def words(value, what):
    """A list of texts; null means none."""
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise Refused(f"{what} in the image's configuration is not a list of texts")
    return value


def keys(value, what):
    if value is None:
        return []
    if not isinstance(value, dict):
        raise Refused(f"{what} in the image's configuration is not an object")
    return sorted(value)


def settings(config):
    """Process settings of the image's configuration, as templates keep them."""
    made = config.get("config")
    made = made if isinstance(made, dict) else {}
    if words(made.get("OnBuild"), "OnBuild"):
        raise Refused("the image has ONBUILD instructions, which are not supported")
    env = dict(pair.split("=", 1) for pair in words(made.get("Env"), "Env") if pair.find("=") > 0)
    labels = made.get("Labels") or {}
    found = {
        "env": env,
        "shell": words(made.get("Shell"), "Shell"),
        "ports": keys(made.get("ExposedPorts"), "ExposedPorts"),
        "volumes": keys(made.get("Volumes"), "Volumes"),
        "labels": {name: str(labels[name]) for name in keys(labels, "Labels")},
    }
    for name, ours in (("User", "user"), ("WorkingDir", "workdir"), ("StopSignal", "stop_signal")):
        if made.get(name):
            found[ours] = str(made[name])
    for name, ours in (("Entrypoint", "entrypoint"), ("Cmd", "cmd")):
        if words(made.get(name), name):
            found[ours] = made[name]
    check = made.get("Healthcheck")
    test = words(check.get("Test"), "Healthcheck") if isinstance(check, dict) else []
    if test[:1] == ["CMD"]:
        found["healthcheck"] = test[1:]
    elif test[:1] == ["CMD-SHELL"]:
        found["healthcheck"] = ["/bin/sh", "-c", *test[1:]]
    text = json.dumps(found)
    if "\\u0000" in text:
        raise Refused("the image's configuration has a NUL character")
    if len(text) > SETTINGS_BYTES_MAX:
        raise Refused(f"the image's configuration has more than {SETTINGS_BYTES_MAX} bytes")
    return found


def resolve(source, out):
    """Finds and checks the image. The list of its layers is kept for `fetch`."""
    digest, data, layers = find(source)
    config = parse_json(data, "the image's configuration")
    system, architecture = str(config.get("os")), str(config.get("architecture"))
    if (system, architecture) != (SYSTEM, ARCHITECTURE):
        platform = f"{system[:40]}/{architecture[:40]}"
        raise Refused(f"image `{source.name}` is for {platform}; machines are {SYSTEM}/{ARCHITECTURE}")
    rootfs = config.get("rootfs")
    sums = words(rootfs.get("diff_ids") if isinstance(rootfs, dict) else None, "diff_ids")
    if len(sums) != len(layers) or not all(DIGEST.fullmatch(one) for one in sums):
        raise Refused(f"image `{source.name}` has {len(layers)} layers and {len(sums)} sums of them")
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    with open(os.path.join(out, "layers.json"), "w") as file:
        json.dump(layers, file)
    size = sum(one["size"] for one in layers)
    return {"digest": digest, "config": settings(config), "diff_ids": sums, "bytes": size}


def fetch(source, out):
    """Fetches the layers of the image that was found, as files `0`, `1` and so on."""
    with open(os.path.join(out, "layers.json")) as file:
        layers = json.load(file)
    total, free = sum(one["size"] for one in layers), shutil.disk_usage(out).free
    if total > free:
        room = f"the builder machine has room for {mib(free)}"
        raise Refused(f"the layers of image `{source.name}` have {mib(total)}; {room}")
    for index, part in enumerate(layers):
        print(f"fetching layer {index + 1}/{len(layers)}, {mib(part['size'])}", flush=True)
        source.layer(part, os.path.join(out, str(index)))


def main():
    wanted = json.load(sys.stdin)
    source = Layout(wanted) if wanted.get("layout") else Registry(wanted)
    is_resolve = wanted["action"] == "resolve"
    try:
        found = (resolve if is_resolve else fetch)(source, wanted["out"])
    except Refused as error:
        why = " ".join(str(error).split())
        found = {"error": why, "unreachable": isinstance(error, Unreachable)}
        print(json.dumps(found) if is_resolve else why)
        return 0 if is_resolve else 1
    if is_resolve:
        print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
