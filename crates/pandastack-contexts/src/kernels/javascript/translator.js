/**
 * Code as the console takes it: `import` and `export` declarations, `import()` and `import.meta` are
 * translated. V8 is the parser: it refuses them, and names their place.
 */
class Translator {
  // An `import()` is marked, which makes V8 call it a misplaced declaration, but not if it is text.
  static CALL = /\bimport(?=\s*\()/g;
  static DECLARATION = new RegExp(
    /import\b\s*(?:([^'"]*?)\s*\bfrom\s*)?(["'])((?:(?!\2)[^\\\n]|\\.)*)\2/.source +
      /(?:\s*(?:with|assert)\s*(\{[^}]*\}))?[^\S\n]*;?/.source,
    "y",
  );
  static CLAUSE = /^(?:([\w$]+)\s*(?:,\s*|$))?(?:\*\s*as\s+([\w$]+)|\{([^]*)\})?$/;
  static EXPORT = /export\s+(?:default\s+|(?=(?:const|let|var|function|class|async)\b))/y;

  constructor(syntaxError) {
    this.syntaxError = syntaxError;
  }

  translate(code) {
    // Each round translates one, so that there is an end.
    for (let rounds = code.length; rounds > 0; rounds--) {
      const changed = /\b(?:import|export)\b/.test(code) ? this.round(code) : null;
      if (changed === null) break;
      code = changed;
    }
    return this.inParentheses(code) ?? code;
  }

  /** Without the first declaration that V8 refuses, or null. */
  round(code) {
    const marked = code.replace(Translator.CALL, "import~");
    const refused = this.syntaxError(`(async () => {\n${marked}\n})`);
    if (refused === null) return null;
    const before = marked.split("\n").slice(0, refused.line - 1);
    let at = before.reduce((sum, line) => sum + line.length + 1, 0) + refused.column;
    for (const { index } of code.matchAll(Translator.CALL)) if (index + "import".length < at) at--;
    const replaced = (length, by) => code.slice(0, at) + by + code.slice(at + length);
    if (/^Unexpected token 'export'/.test(refused.message)) {
      const [found] = this.match(Translator.EXPORT, code, at) ?? [];
      return found ? replaced(found.length, found.replace(/\S/g, " ")) : null;
    }
    if (/'import\.meta'/.test(refused.message)) {
      // It points at the end of it.
      at = code.lastIndexOf("import", at);
      const [found] = this.match(/import\s*\.\s*meta\b/y, code, at) ?? [];
      return found ? replaced(found.length, `${TOOLS_NAME}.meta`) : null;
    }
    if (!/import statement/.test(refused.message)) return null;
    if (this.match(/import\s*\(/y, code, at)) return replaced("import".length, `${TOOLS_NAME}.load`);
    const found = this.match(Translator.DECLARATION, code, at);
    const by = found && this.declaration(found);
    return by ? replaced(found[0].length, by + "\n".repeat(found[0].split("\n").length - 1)) : null;
  }

  match(pattern, code, at) {
    pattern.lastIndex = at;
    return pattern.exec(code);
  }

  /** `import names from "what" with {...}` as a constant. */
  declaration([, names, , what, options]) {
    const load = (wanted) => {
      const given = [
        JSON.stringify(what),
        options ? `{ with: ${options} }` : "undefined",
        JSON.stringify(wanted),
      ];
      return `await ${TOOLS_NAME}.load(${given})`;
    };
    if (names === undefined) return `void ${load([])};`;
    const clause = Translator.CLAUSE.exec(names.replace(/\/\*[^]*?\*\/|\/\/.*/g, "").trim());
    if (clause === null || names.trim() === "") return null;
    const [, main, all, listed] = clause;
    const pairs = (listed ?? "")
      .split(",")
      .map((item) => item.trim())
      .filter(Boolean)
      .map((item) => item.split(/\s+as\s+/));
    if (main) pairs.push(["default", main]);
    const wanted = pairs.map(([name]) => name);
    const parts = pairs.map(([name, local]) => `${name}: ${local ?? name}`).join(", ");
    if (!all) return `const { ${parts} } = ${load(wanted)};`;
    return `const ${all} = ${load(wanted)}${main ? `, { ${parts} } = ${all}` : ""};`;
  }

  /** An object, if it reads like one and not like a block, as consoles decide it. */
  inParentheses(code) {
    const inner = code.replace(/[\s;]+$/, "");
    if (!/^\s*\{[^]*\}$/.test(inner) || this.syntaxError(`async () => (${inner}\n)`)) return null;
    return `(${inner}\n)`;
  }
}
