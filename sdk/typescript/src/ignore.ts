/** `.dockerignore`: which files of a build directory are left out. */

/**
 * The patterns of a `.dockerignore` file. The last one that matches a path counts; `!` includes a
 * file again.
 */
export class Ignore {
  readonly #rules: { keep: boolean; regex: RegExp }[] = [];

  constructor(text = "") {
    for (const raw of text.replace(/^\ufeff/, "").split("\n")) {
      const line = raw.trim();
      if (!line || line.startsWith("#")) continue;
      const keep = line.startsWith("!");
      const parts = partsOf(keep ? line.slice(1).trim() : line);
      if (parts.length > 0) this.#rules.push({ keep, regex: regexOf(parts) });
    }
  }

  /** Whether a file below an excluded directory may still be wanted. */
  get mayKeepBelow(): boolean {
    return this.#rules.some((rule) => rule.keep);
  }

  /** Whether a path, relative to the directory, is excluded. */
  excludes(path: string): boolean {
    let excluded = false;
    for (const { keep, regex } of this.#rules) {
      if (keep === excluded && regex.test(path)) excluded = !keep;
    }
    return excluded;
  }
}

function partsOf(pattern: string): string[] {
  const parts: string[] = [];
  for (const part of pattern.split("/")) {
    if (part === "..") parts.pop();
    else if (part !== "" && part !== ".") parts.push(part);
  }
  return parts;
}

/** A pattern, which also matches everything below a matching path. */
function regexOf(parts: string[]): RegExp {
  let text = "";
  parts.forEach((part, index) => {
    const last = index === parts.length - 1;
    if (part === "**") text += last ? ".*" : "(?:.*/)?";
    else text += nameRegex(part) + (last ? "" : "/");
  });
  return new RegExp(`^(?:${text})(?:/.*)?$`, "s");
}

/** One part of a pattern; its wildcards stay within a name. */
function nameRegex(part: string): string {
  let out = "";
  for (let at = 0; at < part.length; at++) {
    const char = part.charAt(at);
    const end = char === "[" ? part.indexOf("]", at + 2) : -1;
    if (char === "*") out += "[^/]*";
    else if (char === "?") out += "[^/]";
    else if (end > 0) {
      const inner = part.slice(at + 1, end).replace(/[\\[]/g, "\\$&");
      out += /^[!^]/.test(inner) ? `[^${inner.slice(1)}]` : `[${inner}]`;
      at = end;
    } else if (char === "\\" && at + 1 < part.length) out += escaped(part.charAt(++at));
    else out += escaped(char);
  }
  return out;
}

function escaped(char: string): string {
  return char.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&");
}
