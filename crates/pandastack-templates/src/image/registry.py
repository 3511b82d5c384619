# An image in a registry, over the distribution API. Runs in the machine that holds the files of a build,
# which is never saved: it alone sees credentials.
import base64, errno, hashlib, http.client, json, os, re, ssl, time
import urllib.error, urllib.parse, urllib.request

import ecr

# Beyond these, an image is refused.
MANIFEST_BYTES_MAX = 4 << 20
CONFIG_BYTES_MAX = 1 << 20
TOKEN_BYTES_MAX = 1 << 20
# A registry that sends nothing for so long is given up.
STALL_SECONDS_MAX = 60
TRIES = 3
PIECE = 1 << 20
# The operator's mirror of Docker Hub.
MIRROR_VARIABLE = "PANDASTACK_OCI_MIRROR"

INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
PARAMETER = re.compile(r'([A-Za-z]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')


class Refused(Exception):
    """Why an image cannot be used, in a sentence."""


class Unreachable(Refused):
    """The registry did not answer; the network policy may be why."""


def digest_of(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def parse_json(data, what):
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise Refused(f"{what} is not JSON")
    if not isinstance(value, dict):
        raise Refused(f"{what} is not a JSON object")
    return value


def reason_of(error):
    """Why AWS refused a request, in short."""
    try:
        told = json.loads(error.read(TOKEN_BYTES_MAX))
        kind = str(told.get("__type", "")).rpartition("#")[2]
        return f"{kind}: {told.get('message') or told.get('Message') or 'no reason given'}"[:300]
    except (OSError, ValueError, AttributeError, http.client.HTTPException, RecursionError):
        return f"status {error.code}"


def challenge(values):
    """How a registry wants to be asked, from its WWW-Authenticate headers: the scheme in lower case and its
    parameters. Bearer is preferred. None if neither it nor Basic is offered."""
    offered = {}
    for value in values:
        starts = list(re.finditer(r"(?:^|,)\s*(bearer|basic)(?=\s|,|$)", value, re.I))
        ends = [start.start() for start in starts[1:]] + [len(value)]
        for start, end in zip(starts, ends):
            found = PARAMETER.findall(value[start.end():end])
            words = {name.lower(): re.sub(r"\\(.)", r"\1", quoted) or plain for name, quoted, plain in found}
            offered.setdefault(start.group(1).lower(), words)
    return next(((scheme, offered[scheme]) for scheme in ("bearer", "basic") if scheme in offered), None)


class Redirects(urllib.request.HTTPRedirectHandler):
    """Follows to other hosts without credentials, and never from https to http."""

    def redirect_request(self, request, fp, code, message, headers, url):
        old, new = urllib.parse.urlsplit(request.full_url), urllib.parse.urlsplit(url)
        if new.scheme not in ("https", old.scheme):
            raise Refused(f"{old.netloc} redirects to the insecure address {url[:200]}")
        kept = dict(request.headers)
        if (new.scheme, new.netloc) != (old.scheme, old.netloc):
            kept.pop("Authorization", None)
        return urllib.request.Request(url, headers=kept, method=request.get_method())


class Registry:
    """An image in a registry."""

    def __init__(self, wanted):
        self.registry, self.repository = wanted["registry"], wanted["repository"]
        scheme = "http://" if wanted.get("plain_http") else "https://"
        self.base, self.login = scheme + wanted["host"], wanted.get("credentials")
        mirror = os.environ.get(MIRROR_VARIABLE)
        if mirror and self.registry == "docker.io":
            # The mirror gets none of the user's credentials.
            self.base, self.login = mirror.rstrip("/"), None
        self.first, self.authorization = wanted["reference"], None
        self.host = urllib.parse.urlsplit(self.base).netloc.rpartition("@")[2]
        self.name = f"{self.registry}/{self.repository}"
        self.opener = urllib.request.build_opener(Redirects())

    def send(self, url, headers, body=None):
        """One request; failures that may pass are tried again."""
        for left in reversed(range(TRIES)):
            try:
                request = urllib.request.Request(url, data=body, headers=headers)
                return self.opener.open(request, timeout=STALL_SECONDS_MAX)
            except urllib.error.HTTPError as error:
                if error.code < 500 or left == 0:
                    raise
                error.close()
            except (OSError, http.client.HTTPException) as error:
                reason = getattr(error, "reason", error)
                if left == 0 or isinstance(reason, ssl.SSLCertVerificationError):
                    host = urllib.parse.urlsplit(url).netloc.rpartition("@")[2]
                    raise Unreachable(f"cannot reach the registry {host}: {reason or type(error).__name__}")
            time.sleep(TRIES - left)

    def open(self, path, accept=()):
        """A response below the repository, after logging in if the registry asks for it."""
        url = f"{self.base}/v2/{self.repository}/{path}"
        for is_last in (False, True):
            headers = {"User-Agent": "pandastack", **({"Accept": ", ".join(accept)} if accept else {})}
            if self.authorization:
                headers["Authorization"] = self.authorization
            try:
                return self.send(url, headers)
            except urllib.error.HTTPError as error:
                error.close()
                if error.code == 401 and not is_last:
                    self.authorize(error.headers.get_all("WWW-Authenticate") or [])
                    continue
                raise self.explain(error.code, path)

    def explain(self, code, path):
        if code in (401, 403):
            given = "the credentials for it were refused" if self.login else "it needs credentials"
            return Refused(f"image `{self.name}` does not exist, or {given}")
        if code == 404:
            what = path.rpartition("/")[2]
            return Refused(f"image `{self.name}` has no `{what}` in the registry {self.host}")
        if code == 429:
            return Refused(f"the registry {self.host} limits pulls; try later, or pass credentials")
        return Refused(f"the registry {self.host} responded with status {code}")

    def authorize(self, values):
        """Gets what the registry asks for: a token, or the credentials."""
        found = challenge(values)
        if found is None:
            raise Refused(f"the registry {self.host} offers neither Bearer nor Basic authentication")
        scheme, words = found
        basic = None
        if self.login and self.login.get("aws_region"):
            basic = "Basic " + self.ecr_token()
        elif self.login:
            text = f"{self.login['username']}:{self.login['password']}"
            basic = "Basic " + base64.b64encode(text.encode()).decode()
        if scheme == "basic":
            if basic is None:
                raise self.explain(401, "")
            self.authorization = basic
            return
        realm = words.get("realm", "")
        is_plain = self.base.startswith("http://") and realm.startswith("http://")
        if not realm.startswith("https://") and not is_plain:
            raise Refused(f"the registry {self.host} issues tokens at the insecure address {realm[:200]!r}")
        query = {"service": words["service"]} if "service" in words else {}
        query["scope"] = f"repository:{self.repository}:pull"
        url = realm + ("&" if "?" in realm else "?") + urllib.parse.urlencode(query)
        headers = {"User-Agent": "pandastack", **({"Authorization": basic} if basic else {})}
        try:
            with self.send(url, headers) as answer:
                granted = parse_json(answer.read(TOKEN_BYTES_MAX), "the token of the registry")
        except urllib.error.HTTPError as error:
            raise self.explain(error.code, "")
        token = granted.get("token") or granted.get("access_token")
        if not isinstance(token, str) or not re.fullmatch(r"[\x21-\x7e]+", token):
            raise Refused(f"the registry {self.host} returned no token")
        self.authorization = "Bearer " + token

    def ecr_token(self):
        """The token of Amazon ECR for an access key, as Basic authentication takes it."""
        region = self.login["aws_region"]
        if not ecr.REGION.fullmatch(region):
            raise Refused(f"`{region[:40]}` is not an AWS region")
        url, headers, body = ecr.token_request(self.login)
        host = urllib.parse.urlsplit(url).netloc
        try:
            with self.send(url, headers, body) as answer:
                granted = parse_json(answer.read(TOKEN_BYTES_MAX), f"the response of {host}")
        except urllib.error.HTTPError as error:
            raise Refused(f"{host} refused the access key: {reason_of(error)}")
        try:
            token = granted["authorizationData"][0]["authorizationToken"]
        except (LookupError, TypeError):
            token = None
        if not isinstance(token, str) or not re.fullmatch(r"[A-Za-z0-9+/=]+", token):
            raise Refused(f"{host} returned no token")
        return token

    def again(self, what, work):
        """Repeats a transfer that broke off."""
        for left in reversed(range(TRIES)):
            try:
                return work()
            except (OSError, http.client.HTTPException) as error:
                if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
                    raise Refused("the disk of the builder machine is full")
                if left == 0:
                    raise Refused(f"the registry {self.host} stopped sending {what}: {error}")

    def read(self, path, limit, what, accept=()):
        def once():
            with self.open(path, accept) as answer:
                return answer.read(limit + 1), answer.headers

        data, headers = self.again(what, once)
        if len(data) > limit:
            raise Refused(f"{what} has more than {limit} bytes")
        return data, headers

    def manifest(self, reference):
        """The manifest of a tag or digest, as bytes."""
        what = f"the manifest of `{self.name}`"
        types = INDEX_TYPES + MANIFEST_TYPES
        data, headers = self.read(f"manifests/{reference}", MANIFEST_BYTES_MAX, what, types)
        real, told = digest_of(data), headers.get("Docker-Content-Digest") or ""
        if DIGEST.fullmatch(reference) and real != reference:
            raise Refused(f"the registry {self.host} sent {real} as {reference}")
        if told.startswith("sha256:") and told != real:
            raise Refused(f"the registry {self.host} sent {real} as {told[:80]}")
        return data

    def config(self, part):
        what = f"the configuration of `{self.name}`"
        data, _ = self.read(f"blobs/{part['digest']}", CONFIG_BYTES_MAX, what)
        if digest_of(data) != part["digest"]:
            raise Refused(f"the registry {self.host} sent {digest_of(data)} as {part['digest']}")
        return data

    def layer(self, part, out):
        self.again(f"layer {part['digest']}", lambda: self.download(part, out))

    def download(self, part, out):
        summed, left = hashlib.sha256(), part["size"]
        with self.open(f"blobs/{part['digest']}") as answer, open(out, "wb") as file:
            while left >= 0 and (piece := answer.read(PIECE)):
                left -= len(piece)
                summed.update(piece)
                file.write(piece)
        if left > 0:
            raise http.client.IncompleteRead(b"", left)
        real = "sha256:" + summed.hexdigest()
        if left < 0 or real != part["digest"]:
            told = "more bytes than its manifest says" if left < 0 else real
            raise Refused(f"the registry {self.host} sent {told} as {part['digest']}")
