//! The kernel of R.

use super::*;

/// The kernel, if this machine has R.
fn start() -> Option<Kernel> {
    can_run(Language::R).then(|| Kernel::start(Language::R))
}

fn texts(ran: &Ran) -> Vec<&str> {
    ran.results.iter().filter_map(|result| result["text"].as_str()).collect()
}

#[test]
fn values_are_shown_as_in_rs_console() {
    if !can_run(Language::R) {
        return;
    }
    check(
        Language::R,
        &[
            ("x <- 41; f <- function(n) {\n  n + 1\n}", ""),
            ("f(x)", "[1] 42"),
            ("print('ü', quote = FALSE)", "[1] ü\n"),
            ("invisible(1); y <- 2", ""),
            ("cat('out\\n'); message('err')", "out\nerr\n"),
            ("system('echo ü')", "ü\n"),
            ("c('a', \"b's\")", "[1] \"a\"   \"b's\""),
            ("if (x > 1) \r\n  '€'", "[1] \"€\""),
            ("", ""),
            // There is no input, and the kernel's names are not the code's.
            ("c(readline('? '), readLines('stdin'), readLines(stdin()))", "? \n[1] \"\""),
            ("ls(all.names = TRUE)", "[1] \"f\" \"x\" \"y\""),
            ("c <- paste <- cat <- print <- 1; x", "[1] 41"),
            ("list.files(tempdir())", "character(0)"),
            ("closeAllConnections(); search()[[1]]", "[1] \".GlobalEnv\""),
        ],
    );
}

#[test]
fn every_visible_value_is_a_result_and_the_last_one_the_main_one() {
    let Some(mut kernel) = start() else { return };
    let ran = kernel.run("1 + 1; 'x'\nz <- 3");
    assert_eq!((texts(&ran), ran.text()), (vec!["[1] 2", "[1] \"x\""], ""));
    let ran = kernel.run("1\nfrom <- data.frame(a = 1:100, b = c('<&>', 'ü'))\nfrom");
    assert_eq!(ran.text().lines().nth(1), Some("1     1 <&>"));
    let html = ran.results[1]["html"].as_str().unwrap();
    assert!(html.contains("<tr><th>1</th><td>1</td><td>&lt;&amp;&gt;</td></tr>"), "{html}");
    assert!(html.contains("100 rows and 2 columns") && !html.contains("<th>61</th>"), "{html}");
}

#[test]
fn plots_are_pictures_one_for_each_page() {
    let Some(mut kernel) = start() else { return };
    assert_eq!(kernel.run("options(repr.plot.width = 3); par(mfrow = c(1, 2))").results, Vec::<Value>::new());
    let ran = kernel.run("for (n in 1:12) plot(n)\n'drawn'");
    assert_eq!((ran.text(), ran.results.len()), ("[1] \"drawn\"", 1 + 6), "two plots on each page");
    for page in &ran.results[1..] {
        assert!(page["png"].as_str().unwrap().starts_with("iVBORw0KGgo"), "{page}");
    }
    let failed = kernel.run("plot(1); stop('later')");
    assert_eq!((failed.error("value"), failed.results.len()), ("later", 1));
    assert_eq!(kernel.run("dev.list()").text(), "NULL");
    // Files that code writes itself are its own.
    let own = kernel.run("f <- tempfile(); png(f); plot(1); invisible(dev.off()); file.size(f) > 0");
    assert_eq!((own.text(), own.results.len()), ("[1] TRUE", 1));
    assert_eq!(kernel.run("unlink(f); list.files(tempdir(), recursive = TRUE)").text(), "character(0)");
}

#[test]
fn errors_keep_the_state_and_show_the_calls_of_the_code() {
    let Some(mut kernel) = start() else { return };
    kernel.run("x <- 41\nf <- function(n) {\n  stop('no ', n)\n}\ng <- function() f(1)");
    let failed = kernel.run("g()");
    assert_eq!((failed.error("name"), failed.error("value")), ("Error", "no 1"));
    let lines: Vec<&str> = failed.error("traceback").lines().collect();
    let calls = ["3: stop(\"no \", n) at <cell-1>#3", "2: f(1) at <cell-1>#5", "1: g() at <cell-2>#1"];
    assert_eq!(lines, [&["Error in f(1): no 1", "Calls, the last one first:"], &calls[..]].concat());
    for (code, name, value) in [
        ("nothing", "Error", "object 'nothing' not found"),
        ("a b", "ParseError", "<cell-4>:1:3: unexpected symbol\n1: a b\n      ^"),
        ("1\nif (", "ParseError", "<cell-5>:3:0: unexpected end of input\n1: 1\n2: if (\n  ^"),
        ("'a\0b'", "ParseError", "embedded nul in string: ''a\\0b''"),
        ("break", "Error", "no loop for break/next, jump"),
        (
            "stop(structure(class = c('odd', 'error', 'condition'), list(message = 'm', call = NULL)))",
            "odd",
            "m",
        ),
        (
            "options(warn = 2); as.integer('a')",
            "Error",
            "(converted from warning) NAs introduced by coercion",
        ),
    ] {
        let failed = kernel.run(code);
        assert_eq!(failed.error("name"), name, "{code}: {failed:?}");
        assert!(failed.error("value").starts_with(value), "{code}: {failed:?}");
        assert!(!failed.error("traceback").contains(": eval("), "{code}: {failed:?}");
    }
    let warned = kernel.run("options(warn = 0); h <- function() { warning('w'); 1 }; h(); log(-1)");
    assert_eq!(warned.stderr, "Warning in h(): w\nWarning in log(-1): NaNs produced\n");
    let deep = kernel.run("deep <- function() deep(); deep()");
    assert!(deep.error.is_some() && deep.error("traceback").len() < 4000, "{deep:?}");
    assert_eq!(kernel.run("invokeRestart('abort')").error, None);
    assert_eq!(kernel.run("x + 1").text(), "[1] 42");
}

#[test]
fn the_end_of_r_is_the_end_of_the_context() {
    for (code, status) in [("cat('a\\n'); quit(status = 3)", 3), ("tools::pskill(Sys.getpid(), 9)", 128 + 9)]
    {
        let Some(mut kernel) = start() else { return };
        assert_eq!(kernel.run(code).error, None);
        assert_eq!(kernel.close().code(), Some(status), "{code}");
    }
}

#[test]
fn an_interrupted_run_leaves_the_state() {
    let Some(mut kernel) = start() else { return };
    kernel.run("x <- 41; system('sleep 1000 &')");
    for endless in [
        "cat('\\n'); repeat {}",
        "cat('\\n'); Sys.sleep(1000); x <- 0",
        "cat('\\n'); system('sleep 1000'); x <- 0",
        "cat('\\n'); repeat system('sleep 1000')",
        "repeat cat('x\\n')",
    ] {
        assert_eq!(kernel.interrupt(endless).error("name"), "Interrupted", "{endless}");
        assert_eq!(kernel.run("x + 1").text(), "[1] 42", "{endless}");
    }
    // What runs in the background went on.
    assert_eq!(kernel.run("invisible(print(system('pkill -g 0 -x sleep')))").stdout, "[1] 0\n");
    // The interrupt and the end of the run cross each other somewhere among these.
    for ms in 0..20 {
        kernel.interrupt(&format!("cat('\\n'); Sys.sleep({ms} / 1000)"));
        assert_eq!(kernel.run("x").text(), "[1] 41", "{ms} ms");
    }
    assert!(kernel.close().success());
}

#[test]
fn variables_of_a_run_are_its_own() {
    let Some(mut kernel) = start() else { return };
    kernel.run("Sys.setenv(KEPT = 'before')");
    let env = json!({ "CALL": "it's\n\"mine\" ü", "KEPT": "" });
    let run = kernel.begin("cat(Sys.getenv(c('CALL', 'KEPT')), sep = '|')", &env);
    assert_eq!(kernel.finish(&run).stdout, "it's\n\"mine\" ü|");
    assert_eq!(
        kernel.run("Sys.getenv(c('CALL', 'KEPT'), NA, names = FALSE)").text(),
        "[1] NA       \"before\""
    );
}

#[test]
fn code_and_output_may_be_large() {
    let Some(mut kernel) = start() else { return };
    let code = format!("nchar('{}')", "€".repeat((1 << 20) / 3 - 10));
    assert_eq!(kernel.run(&code).text(), format!("[1] {}", (1 << 20) / 3 - 10));
    let much = kernel.run("cat(strrep('x', 1e7)); cat('\\n'); write('end', stderr()); strrep('y', 1e6)");
    assert_eq!(
        (much.stdout.len(), much.stderr.as_str(), much.text().len()),
        (10_000_001, "end\n", 1_000_006)
    );
    assert_eq!(kernel.run("cat('\\xff')").stdout, "\u{fffd}");
}
