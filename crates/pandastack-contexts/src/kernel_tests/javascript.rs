//! The kernel of JavaScript and TypeScript.

use std::process::Command;

use super::*;

#[test]
fn declarations_are_visible_and_can_be_repeated_in_later_cells() {
    check(
        Language::JavaScript,
        &[
            ("let a = 1; const b = 2; var c = 3; class D { e = 4 }; function f() { return a + b }", ""),
            ("f() + c + new D().e", "10"),
            ("let a = 10; const b = 20; class D { e = 40 }", ""),
            ("f() + new D().e", "70"),
            ("const late = await new Promise((done) => setTimeout(() => done(5), 1)); late", "5"),
            ("async function main() { await null; return late + 1 }\nmain()", "6"),
            ("{ x: late, y: [1] }", "{ x: 5, y: [ 1 ] }"),
            ("if (late) { 'block' }", "block"),
        ],
    );
}

#[test]
fn modules_are_imported_as_in_files_of_modules() {
    check(
        Language::JavaScript,
        &[
            (
                "import fs, { readFileSync as read,\n  existsSync } from 'node:fs'\n\
                 import * as path from \"path\";",
                "",
            ),
            (
                "[typeof fs.statSync, typeof read, existsSync('/'), path.join('a', 'b')].join()",
                "function,function,true,a/b",
            ),
            ("import 'node:os'; import os /* why */ from 'os'; typeof os.cpus", "function"),
            (
                "`import(x) ${(await import('node:path')).sep} ` + /import (x)/.source // import(x)",
                "import(x) / import (x)",
            ),
            ("const load = (what) => import (what); (await load('path')).basename('/a/b')", "b"),
            ("import { nothing } from 'fs'", "SyntaxError: the module 'fs' has no export named 'nothing'"),
            ("import.meta.url.endsWith('.mjs')", "true"),
            ("export const given = 1; export default function named() {}\ngiven", "1"),
            ("require('path').sep", "/"),
        ],
    );
}

#[test]
fn errors_show_the_lines_of_the_cell() {
    let mut kernel = Kernel::start(Language::JavaScript);
    let failed = kernel.run("function f() {\n  null.x\n}\nf()");
    let value = "Cannot read properties of null (reading 'x')";
    assert_eq!((failed.error("name"), failed.error("value")), ("TypeError", value));
    let lines: Vec<&str> = failed.error("traceback").lines().collect();
    assert_eq!(lines, [&format!("TypeError: {value}"), "    at f (<cell-1>:2:8)", "    at <cell-1>:4:1"]);
    let failed = kernel.run("let ok = 1\nlet x = ;");
    assert_eq!(
        failed.error("traceback").lines().take(3).collect::<Vec<_>>(),
        ["<cell-2>:2", "let x = ;", "        ^"]
    );
    assert_eq!(kernel.run("throw 'text'").error("value"), "text");
    assert_eq!(kernel.run("throw null").error("value"), "null");
    let failed = kernel.run("require('fs').readFileSync('/no/such')");
    assert!(
        failed.error("traceback").contains("code: 'ENOENT'") && !failed.error("traceback").contains("node:")
    );
    // Nobody awaits these: they end neither the run nor the context.
    let late = kernel.run(
        "Promise.reject(new Error('one')); setTimeout(() => { throw new Error('two') }, 1)\n\
         await new Promise((done) => setTimeout(done, 50)); 'on'",
    );
    assert!(late.stderr.contains("Error: one") && late.stderr.contains("Error: two"), "{late:?}");
    assert_eq!(late.text(), "on");
    assert_eq!(kernel.run("process.exit(3)").error, None);
    assert_eq!(kernel.close().code(), Some(3));
}

#[test]
fn objects_are_shown_in_every_form_that_they_offer() {
    let mut kernel = Kernel::start(Language::JavaScript);
    let ran = kernel.run(
        "display({ _repr_html_: () => '<b>', _repr_png_: () => new Uint8Array([1, 2]) })\n\
         console.log('between'); const bundle = { 'text/plain': 'T', 'image/svg+xml': '<svg>' }\n\
         display({ async [Symbol.for('Jupyter.display')]() { return bundle } });\n\
         ({ a: [1, 'ü'] })",
    );
    let [first, second, main] = ran.results.as_slice() else { panic!("{ran:?}") };
    assert_eq!((&first["html"], &first["png"], first.get("json")), (&json!("<b>"), &json!("AQI="), None));
    assert_eq!((&second["text"], &second["svg"]), (&json!("T"), &json!("<svg>")));
    assert_eq!((&main["text"], &main["json"]), (&json!("{ a: [ 1, 'ü' ] }"), &json!({ "a": [1, "ü"] })));
    let odd = kernel.run("({ get [Symbol.toStringTag]() { throw 1 }, toJSON() { throw 1 } })");
    assert!(odd.error.is_none() && odd.results.len() == 1, "{odd:?}");
    assert!(kernel.run("undefined").results.is_empty());
}

#[test]
fn output_of_children_and_variables_belong_to_their_run() {
    let mut kernel = Kernel::start(Language::JavaScript);
    let ran = kernel.run(
        "process.stdout.write('a\\n'); console.error('b')\n\
         require('child_process').execSync('echo ü; echo d >&2', { stdio: 'inherit' }); 0",
    );
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("a\nü\n", "b\nd\n"));
    let run = kernel.begin("process.env.CALL", &json!({ "CALL": "mine" }));
    assert_eq!(kernel.finish(&run).text(), "mine");
    assert!(kernel.run("process.env.CALL").results.is_empty());
    let much = kernel.run("for (let i = 0; i < 100; i++) console.log('x'.repeat(1 << 20))");
    assert_eq!(much.stdout.len(), 100 * ((1 << 20) + 1));
    assert!(kernel.close().success());
}

#[test]
fn output_before_the_end_of_the_process_arrives() {
    let mut kernel = Kernel::start(Language::JavaScript);
    let ended = kernel.run("console.log('x'.repeat(1 << 20)); process.exit(3)");
    assert_eq!(ended.stdout.len(), (1 << 20) + 1);
    assert_eq!(kernel.close().code(), Some(3));
}

#[test]
fn values_that_cannot_be_shown_end_neither_run_nor_context() {
    let mut kernel = Kernel::start(Language::JavaScript);
    assert_eq!(kernel.run("display({ _repr_json_: () => ({ a: 1n }) })").error, None);
    for code in [
        "throw new Proxy({}, { get() { throw 1 } })",
        "class Odd extends Error { static name() {} }\nthrow new Odd()",
        "throw Object.defineProperty(new Error(), 'message', { get() { throw 1 } })",
    ] {
        assert!(kernel.run(code).error.is_some(), "{code}");
    }
    assert_eq!(kernel.run("40 + 2").text(), "42");
    assert!(kernel.close().success());
}

/// The interrupt and the end of the run cross each other somewhere among these.
#[test]
fn an_interrupt_at_the_end_of_a_run_stops_no_later_one() {
    let mut kernel = Kernel::start(Language::JavaScript);
    for ms in 0..20 {
        kernel.interrupt(&format!("console.log(1); for (const end = Date.now() + {ms}; Date.now() < end;);"));
        assert_eq!(kernel.run("40 + 2").text(), "42", "{ms} ms");
    }
    assert!(kernel.close().success());
}

#[test]
fn an_interrupted_run_leaves_the_state() {
    let mut kernel = Kernel::start(Language::JavaScript);
    kernel.run("let kept = 41");
    for endless in [
        "console.log(1); while (true) kept = 41",
        "console.log(1); await new Promise(() => {})",
        "console.log(1); while (true) await null",
        "setTimeout(() => { console.log(1); while (true); }, 1); await new Promise(() => {})",
        "while (true) console.log('x'.repeat(100000))",
        "console.log(1); Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)",
    ] {
        assert_eq!(kernel.interrupt(endless).error("name"), "Interrupted", "{endless}");
        assert_eq!(
            kernel.run("await new Promise((done) => setTimeout(done, 1)); kept + 1").text(),
            "42",
            "{endless}"
        );
    }
    // The child ends, however late it began. The code fails then, or is interrupted first.
    let killed = kernel.interrupt("console.log(1); require('child_process').execSync('sleep 1000')");
    assert!(
        killed.error("traceback").contains("SIGINT") || killed.error("name") == "Interrupted",
        "{killed:?}"
    );
    // One that waits for its turn does not begin.
    let first =
        kernel.begin("console.log(1); await new Promise((done) => globalThis.go = done)", &Value::Null);
    let second = kernel.begin("kept = 0", &Value::Null);
    kernel.send(&json!({ "cancel": second }));
    kernel.send(&json!({ "cancel": first }));
    kernel.finish(&first);
    assert_eq!(kernel.run("kept").text(), "41");
    assert!(kernel.close().success());
}

#[test]
fn typescript_runs_without_its_types() {
    let version =
        Command::new("node").args(["-p", "typeof module.constructor.stripTypeScriptTypes"]).output().unwrap();
    if version.stdout != b"function\n" {
        let mut kernel = Kernel::start(Language::TypeScript);
        let failed = kernel.run("1");
        assert!(failed.error("value").starts_with("TypeScript needs Node.js 22.13"), "{failed:?}");
        eprintln!(
            "skipped: this machine's Node.js cannot remove types; test_code_contexts.py does it in a template"
        );
        return;
    }
    check(
        Language::TypeScript,
        &[
            ("interface A { x: number }; const a: A = { x: 41 }", ""),
            ("enum E { One = 1 }\nimport { type Stats, existsSync } from 'fs'", ""),
            (
                "function f<T>(given: T): T { return given }\n\
                 f<number>(a.x) + E.One + (existsSync('/') ? 0 : 1)",
                "42",
            ),
            (
                "const b: number = (undefined as any).x",
                "TypeError: Cannot read properties of undefined (reading 'x')",
            ),
        ],
    );
}
