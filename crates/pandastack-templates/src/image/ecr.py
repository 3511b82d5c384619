# Amazon ECR: exchanges an access key for the token that its registries take. The request is signed with
# "Signature Version 4".
import datetime, hashlib, hmac, re

TOKEN_HEADERS = {
    "Content-Type": "application/x-amz-json-1.1",
    "X-Amz-Target": "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken",
}
TOKEN_BODY = b"{}"
REGION = re.compile(r"[a-z0-9-]{1,32}")


def endpoint(region):
    """The host that issues tokens of a region. Regions in China have a domain of their own."""
    return f"api.ecr.{region}.amazonaws.com" + (".cn" if region.startswith("cn-") else "")


def token_request(login):
    """The URL, headers and body that ask for a token."""
    host = endpoint(login["aws_region"])
    headers = {**TOKEN_HEADERS, "Host": host, "X-Amz-Date": now()}
    key = (login["username"], login["password"])
    headers["Authorization"] = signature("POST", headers, TOKEN_BODY, key, login["aws_region"], "ecr")
    return f"https://{host}/", headers, TOKEN_BODY


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")


def signature(method, headers, body, key, region, service):
    """The Authorization header of a request for `/`. All given headers are signed."""
    identity, secret = key
    signed = {name.lower(): " ".join(value.split()) for name, value in headers.items()}
    names = ";".join(sorted(signed))
    lines = [f"{name}:{signed[name]}\n" for name in sorted(signed)]
    canonical = "\n".join([method, "/", "", "".join(lines), names, hashlib.sha256(body).hexdigest()])
    at = signed["x-amz-date"]
    scope = f"{at[:8]}/{region}/{service}/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", at, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    signing = ("AWS4" + secret).encode()
    for part in scope.split("/"):
        signing = hmac.digest(signing, part.encode(), "sha256")
    found = hmac.digest(signing, text.encode(), "sha256").hex()
    return f"AWS4-HMAC-SHA256 Credential={identity}/{scope}, SignedHeaders={names}, Signature={found}"
