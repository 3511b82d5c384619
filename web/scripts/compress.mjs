// Compresses what vite built: every file becomes `x.gz` and `x.br`, and the original goes. The server
// sends these as they are. Fails when the first load is larger than it may be.
import { readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";

/** The page, its style sheet and the scripts it loads at once, compressed. */
const FIRST_LOAD_BYTES_MAX = 300 * 1024;
const built = fileURLToPath(new URL("../../crates/pandastack-console/pages/built", import.meta.url));

const files = readdirSync(built, { recursive: true })
  .map((name) => join(built, name))
  .filter((path) => statSync(path).isFile());
const page = readFileSync(join(built, "index.html"), "utf8");
let first = 0;
for (const path of files) {
  const content = readFileSync(path);
  const gzip = gzipSync(content, { level: 9 });
  const params = { [constants.BROTLI_PARAM_QUALITY]: 11, [constants.BROTLI_PARAM_SIZE_HINT]: content.length };
  writeFileSync(`${path}.gz`, gzip);
  writeFileSync(`${path}.br`, brotliCompressSync(content, { params }));
  rmSync(path);
  const name = path.slice(built.length + 1);
  if (name === "index.html" || page.includes(`/console/${name}`)) first += gzip.length;
}
console.log(`first load: ${(first / 1024).toFixed(1)} KiB gzip of at most ${FIRST_LOAD_BYTES_MAX / 1024}`);
if (first > FIRST_LOAD_BYTES_MAX) {
  console.error("the first load is too large\nhint: load what the first page does not show with React.lazy");
  process.exit(1);
}
