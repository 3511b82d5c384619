//! The kernel of Java.

use super::*;

/// The kernel, if this machine has a JDK.
fn start() -> Option<Kernel> {
    can_run(Language::Java).then(|| Kernel::start(Language::Java))
}

#[test]
fn values_declarations_and_errors_are_those_of_the_cell() {
    if !can_run(Language::Java) {
        return;
    }
    check(
        Language::Java,
        &[
            ("int x = 41; int f(int n) {\n  return n + 1;\n}", ""),
            ("f(x)", "42"),
            ("System.out.println(\"ü\"); System.err.println(\"err\");", "ü\nerr\n"),
            ("List.of(1, 2).stream().map(n -> n + 1).collect(Collectors.toList())", "[2, 3]"),
            ("int x = 1;\nclass A { int v = x; }\nrecord B(int a, String b) {}", ""),
            ("new B(new A().v, \"€\")", "B[a=1, b=€]"),
            ("x = 41;", "41"),
            ("\"a\\\"b\"", "a\"b"),
            ("Object o = 'c'; o", "c"),
            ("new int[] { 1, 2 }", "int[2] { 1, 2 }"),
            ("if (x > 1) { System.out.print(\"no value\"); }", "no value"),
            ("for (int i = 0; i < 2; i++)\n  System.out.print(i); // why", "01"),
            ("import java.time.*;\nDuration.ofSeconds(x)", "PT41S"),
            ("", ""),
            ("System.in.read()", "-1"),
            ("// nothing", ""),
            ("new ProcessBuilder(\"echo\", \"ü\").inheritIO().start().waitFor()", "ü\n0"),
            ("x +", "CompilationError: <cell-18>:1: reached end of file while parsing"),
            (
                "int y = 1;\nint s = 1 + true;",
                "CompilationError: <cell-19>:2: bad operand types \
                 for binary operator '+'\n  first type:  int\n  \
                 second type: boolean",
            ),
            ("throw new IllegalStateException()", "java.lang.IllegalStateException: "),
            ("y + x", "42"),
        ],
    );
}

#[test]
fn errors_show_the_lines_of_the_cell() {
    let Some(mut kernel) = start() else { return };
    let failed = kernel.run("int f(int n) {\n  return 1 / n;\n}\n\nf(0);");
    assert_eq!((failed.error("name"), failed.error("value")), ("java.lang.ArithmeticException", "/ by zero"));
    let lines: Vec<&str> = failed.error("traceback").lines().collect();
    let frames = ["    at f (<cell-1>:2)", "    at <cell-1>:5"];
    assert_eq!(lines, [&["java.lang.ArithmeticException: / by zero"], &frames[..]].concat());
    let cause = kernel.run("throw new RuntimeException(\"a\", new java.io.IOException(\"b\"))");
    assert!(cause.error("traceback").contains("\nCaused by: java.io.IOException: b\n"), "{cause:?}");
    let failed = kernel.run("int one = 1;\n  int two = three;");
    let shown = "<cell-3>:2: cannot find symbol\n  symbol:   variable three\n  location: class ";
    assert_eq!(failed.error("traceback"), format!("{shown}\n  int two = three;\n            ^"));
    assert_eq!(kernel.run("one").text(), "1", "what was before it, has run");
    let failed = kernel.run("int a = 1;\n\n// Why\n/* it\nfails */ for (;;)\n  throw new Error();");
    assert_eq!(failed.error("traceback"), "java.lang.Error\n    at <cell-5>:6");
    // Declarations may come in any order.
    let early = kernel.run("int g() { return h(); }");
    assert_eq!(early.stderr, "warning: `g` cannot be used until these are declared: method h()\n");
    assert_eq!(kernel.run("g()").error("value"), "`g` needs what is not declared: method h()");
    assert_eq!(kernel.run("int h() { return 7; } g()").text(), "7");
    // The compiler forgets a constant that it cannot translate.
    let long = kernel.run(&format!("String s = \"{}\";", "y".repeat(70_000)));
    assert_eq!(long.error("value"), "<cell-9>:1: constant string too long");
    assert_eq!(kernel.run("int after = 42; after").text(), "42");
    let deep = kernel.run("int deep(int n) { return deep(n) + 1; } deep(0)");
    assert_eq!(deep.error("name"), "java.lang.StackOverflowError");
    assert!(deep.error("traceback").ends_with("more") && deep.error("traceback").len() < 4000, "{deep:?}");
}

#[test]
fn variables_are_properties_and_those_of_a_run_are_its_own() {
    let Some(mut kernel) = start() else { return };
    let run =
        kernel.begin("System.getProperty(\"CALL\")", &json!({ "CALL": "it's\n\"mine\" ü", "PATH": "x" }));
    assert_eq!(kernel.finish(&run).text(), "it's\n\"mine\" ü");
    assert_eq!(kernel.run("System.getProperty(\"CALL\", \"none\")").text(), "none");
    assert_eq!(kernel.run("System.getProperty(\"PATH\").equals(System.getenv(\"PATH\"))").text(), "true");
    let much = kernel.run("System.out.println(\"x\".repeat(10_000_000)); System.err.println(\"end\");");
    assert_eq!((much.stdout.len(), much.stderr.as_str()), (10_000_001, "end\n"));
    // Threads go on in the background, and a run does not wait for them.
    let pool = "var pool = Executors.newFixedThreadPool(2); pool.submit(() -> 42).get()";
    assert_eq!(kernel.run(pool).text(), "42");
    let thrown =
        "var bad = new Thread(() -> { throw new RuntimeException(\"late\"); }); bad.start(); bad.join();";
    assert!(kernel.run(thrown).stderr.contains("java.lang.RuntimeException: late"));
    assert_eq!(kernel.run("System.out.print(1); System.exit(3);").stdout, "1");
    assert_eq!(kernel.close().code(), Some(3));
}

#[test]
fn an_interrupted_run_leaves_the_state() {
    let Some(mut kernel) = start() else { return };
    kernel.run("int x = 41;");
    for endless in [
        "System.out.println(); while (true) x = 41;",
        "System.out.println(); Thread.sleep(1_000_000); x = 0;",
        "System.out.println(); new ProcessBuilder(\"sleep\", \"1000\").start().waitFor();",
        "while (true) System.out.println(\"x\");",
        "System.out.println(); try { while (true) x = 41; } catch (Exception all) { x = 0; }",
    ] {
        assert_eq!(kernel.interrupt(endless).error("name"), "Interrupted", "{endless}");
        assert_eq!(kernel.run("x + 1").text(), "42", "{endless}");
    }
    // The interrupt and the end of the run cross each other somewhere among these.
    for ms in 0..20 {
        kernel.interrupt(&format!("System.out.println(); Thread.sleep({ms});"));
        assert_eq!(kernel.run("x").text(), "41", "{ms} ms");
    }
    assert!(kernel.close().success());
}
