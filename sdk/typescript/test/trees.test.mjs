// Directories as archives: what is written is a tar archive, and a foreign one cannot leave its directory.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { chmod, lstat, mkdir, mkdtemp, readdir, readFile, readlink, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { BadRequestError, NotFoundError } from "@pandastack/sdk";
import { setup } from "./setup.mjs";

const LONG = "ü".repeat(90);

async function scratch(t) {
  const dir = await mkdtemp(join(tmpdir(), "pandastack-trees-"));
  t.after(() => rm(dir, { recursive: true }));
  return dir;
}

async function tree(dir) {
  await mkdir(join(dir, "a/empty"), { recursive: true });
  await writeFile(join(dir, "a/text"), "grüße");
  await writeFile(join(dir, `a/${LONG}`), "long");
  await writeFile(join(dir, "run"), "#!/bin/sh\n");
  await chmod(join(dir, "run"), 0o755);
  await writeFile(join(dir, "blocks"), Buffer.alloc(1024, 7));
  await symlink("a/text", join(dir, "link"));
}

test("uploadDir sends an archive that tar can extract", async (t) => {
  const { server, sandbox } = await setup(t);
  const dir = await scratch(t);
  await mkdir(join(dir, "in"));
  await tree(join(dir, "in"));
  server.on("PUT", "/v1/sandboxes/s1/fs/tar", 200, { path: "/srv/x", bytes: 9 });
  const files = (await sandbox()).filesystem;
  assert.deepEqual(await files.uploadDir(join(dir, "in"), "/srv/x"), { path: "/srv/x", bytes: 9 });
  assert.deepEqual([server.last.query, server.last.headers["content-type"]], [{ path: "/srv/x" }, "application/x-tar"]);
  await writeFile(join(dir, "archive.tar"), server.last.body);
  await mkdir(join(dir, "out"));
  execFileSync("tar", ["-xf", join(dir, "archive.tar"), "-C", join(dir, "out")]);
  execFileSync("diff", ["-r", "--no-dereference", join(dir, "in"), join(dir, "out")]);
  assert.equal((await lstat(join(dir, "out/run"))).mode & 0o777, 0o755);
});

test("downloadDir extracts tar archives in chunks of any size", async (t) => {
  const dir = await scratch(t);
  await mkdir(join(dir, "in"));
  await tree(join(dir, "in"));
  for (const format of ["gnu", "pax", "ustar"]) {
    if (format === "ustar") await rm(join(dir, `in/a/${LONG}`));
    const archive = execFileSync("tar", ["-c", `--format=${format}`, "-C", join(dir, "in"), "."], { maxBuffer: 1 << 24 });
    const { server, sandbox } = await setup(t);
    const chunks = Array.from({ length: Math.ceil(archive.length / 700) }, (_, n) => archive.subarray(n * 700, (n + 1) * 700));
    server.on("GET", "/v1/sandboxes/s1/fs/tar", 200, undefined, { chunks });
    const out = join(dir, `out-${format}`);
    await (await sandbox()).filesystem.downloadDir("/srv/x", out);
    execFileSync("diff", ["-r", "--no-dereference", join(dir, "in"), out]);
    assert.equal((await lstat(join(out, "run"))).mode & 0o777, 0o755, format);
    assert.equal(await readlink(join(out, "link")), "a/text", format);
  }
});

test("hostile archives cannot write outside the directory", async (t) => {
  const dir = await scratch(t);
  await mkdir(join(dir, "outside"));
  const pack = (script) => {
    const program = `import io, sys, tarfile
out = io.BytesIO(); archive = tarfile.open(fileobj=out, mode="w")
def add(name, kind=tarfile.REGTYPE, target="", data=b"evil"):
    entry = tarfile.TarInfo(name); entry.type = kind; entry.linkname = target
    entry.size = len(data) if kind == tarfile.REGTYPE else 0
    archive.addfile(entry, io.BytesIO(data) if entry.size else None)
${script}
archive.close(); sys.stdout.buffer.write(out.getvalue())`;
    return execFileSync("python3", ["-c", program]);
  };
  for (const script of [
    `add("../outside/x")`,
    `add("/${join(dir, "outside/x").slice(1)}")`,
    `add("a/../../outside/x")`,
    `add("link", tarfile.SYMTYPE, "../outside"); add("link/x")`,
    `add("link", tarfile.SYMTYPE, "${join(dir, "outside")}"); add("link/x")`,
    `add("b", tarfile.SYMTYPE, "."); add("b/c", tarfile.SYMTYPE, "../outside"); add("c/x")`,
    `add("hard", tarfile.LNKTYPE, "../outside/secret")`,
  ]) {
    await writeFile(join(dir, "outside/secret"), "kept");
    const { server, sandbox } = await setup(t);
    server.on("GET", "/v1/sandboxes/s1/fs/tar", 200, pack(script));
    const files = (await sandbox()).filesystem;
    await assert.rejects(files.downloadDir("/srv", join(dir, "into")), BadRequestError, script);
    assert.deepEqual(await readdir(join(dir, "outside")), ["secret"], script);
    assert.equal(await readFile(join(dir, "outside/secret"), "utf8"), "kept");
    await rm(join(dir, "into"), { recursive: true });
  }
});

test("a missing path, a non-directory and a non-archive are rejected", async (t) => {
  const dir = await scratch(t);
  await writeFile(join(dir, "file"), "x");
  const { server, sandbox } = await setup(t);
  const files = (await sandbox()).filesystem;
  await assert.rejects(files.uploadDir(join(dir, "file"), "/srv"), BadRequestError);
  await assert.rejects(files.uploadDir(join(dir, "none"), "/srv"), { code: "ENOENT" });
  server.on("GET", "/v1/sandboxes/s1/fs/tar", 404, { error: "there is no such file", code: "file_not_found" });
  await assert.rejects(files.downloadDir("/srv/none", join(dir, "a")), NotFoundError);
  const other = await setup(t);
  other.server.on("GET", "/v1/sandboxes/s1/fs/tar", 200, Buffer.alloc(600, "x"));
  await assert.rejects((await other.sandbox()).filesystem.downloadDir("/srv", join(dir, "b")), BadRequestError);
});

test("a template build excludes .dockerignore matches and is cancelled if it fails to start", async (t) => {
  const { server, client } = await setup(t);
  const dir = await scratch(t);
  for (const name of ["Dockerfile", "src/a.py", "src/a.pyc", "node_modules/x/index.js", "docs/b.md", "docs/keep.md"]) {
    await mkdir(join(dir, "in", name, ".."), { recursive: true });
    await writeFile(join(dir, "in", name), "FROM base\n");
  }
  await writeFile(join(dir, "in/.dockerignore"), "# big\nnode_modules\n**/*.pyc\ndocs/*\n!docs/keep.md\n");
  server.on("POST", "/v1/templates/builds", 202, { id: "b1", name: "t", status: "queued" });
  server.on("PUT", "/v1/templates/builds/b1/files", 204);
  server.on("POST", "/v1/templates/builds/b1/start", 400, { error: { code: "bad_request", message: "line 1" } });
  server.on("POST", "/v1/templates/builds/b1/cancel", 202);
  await assert.rejects(client.templates.build("t", { directory: join(dir, "in") }), BadRequestError);
  await writeFile(join(dir, "archive.tar"), server.sent("PUT", "/v1/templates/builds/b1/files")[0].body);
  const names = execFileSync("tar", ["-tf", join(dir, "archive.tar")]).toString().trim().split("\n").sort();
  assert.deepEqual(names, [".dockerignore", "Dockerfile", "docs/", "docs/keep.md", "src/", "src/a.py"]);
  assert.equal(server.sent("POST", "/v1/templates/builds/b1/cancel").length, 1);
});
