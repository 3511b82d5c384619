use std::fs;
use std::path::PathBuf;

use super::*;

/// A crate in a directory of its own, gone at the end.
struct Crate(PathBuf);

impl Crate {
    fn new(name: &str, files: &[(&str, &str)]) -> Self {
        let dir = std::env::temp_dir().join(format!("pandastack-circles-{name}-{}", std::process::id()));
        for (path, text) in files {
            let path = dir.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Self(dir)
    }

    fn graph(&self) -> Graph {
        Graph::of(&Resolver::read(&self.0.join("lib.rs")).unwrap())
    }

    /// Each edge as `from -> to`.
    fn edges(&self) -> Vec<String> {
        let short = |path: &Path| path.strip_prefix(&self.0).unwrap().display().to_string();
        let references = Resolver::read(&self.0.join("lib.rs")).unwrap().references();
        let edges = references.iter().filter(|(from, to, _)| from != to);
        let mut edges: Vec<String> =
            edges.map(|(from, to, _)| format!("{} -> {}", short(from), short(to))).collect();
        edges.sort();
        edges.dedup();
        edges
    }
}

impl Drop for Crate {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Checks the edges of a crate whose `lib.rs` declares `a` (with a child `a::inner`), `b` and `c`,
/// and whose `b` defines a few names.
#[track_caller]
fn check(name: &str, a: &str, expect: &[&str]) {
    let fixture = Crate::new(
        name,
        &[
            ("lib.rs", "mod a; mod b; mod c; pub mod front { pub use crate::b::*; }"),
            ("a.rs", a),
            ("a/inner.rs", "pub struct Inner;"),
            (
                "b.rs",
                "pub struct B; pub fn b() {} pub mod deep { pub const D: u8 = 1; } pub use std::io::Error;",
            ),
            ("c/mod.rs", "mod leaf; pub use leaf::Leaf as Renamed; pub use self::leaf::{self as same};"),
            ("c/leaf.rs", "pub struct Leaf; pub fn grow() {}"),
        ],
    );
    let edges = fixture.edges();
    let of_a: Vec<&str> = edges.iter().map(String::as_str).filter(|edge| edge.starts_with("a.rs")).collect();
    assert_eq!(of_a, expect, "{a}");
}

#[test]
fn module_paths_are_resolved_to_files() {
    check("use", "use crate::b::B;", &["a.rs -> b.rs"]);
    check("super", "use super::b::{self, deep::D};", &["a.rs -> b.rs"]);
    check("group", "use crate::{b::B, c::{Renamed, same}};", &["a.rs -> b.rs", "a.rs -> c/leaf.rs"]);
    check("inline", "fn f() { crate::b::b(); }", &["a.rs -> b.rs"]);
    check("type", "struct A(Option<super::b::B>);", &["a.rs -> b.rs"]);
    check(
        "imported",
        "use crate::c; fn f() { c::same::grow(); }",
        &["a.rs -> c/leaf.rs", "a.rs -> c/mod.rs"],
    );
    check("reexport", "use crate::c::Renamed;", &["a.rs -> c/leaf.rs"]);
    check("foreign", "use crate::b::Error;", &["a.rs -> b.rs"]);
    check("glob", "use crate::front::*; fn f() -> B { todo() }", &["a.rs -> b.rs", "a.rs -> lib.rs"]);
    check("child", "mod inner; pub use inner::Inner;", &["a.rs -> a/inner.rs"]);
    check("inline module", "mod own { use super::super::b::B; }", &["a.rs -> b.rs"]);
    check("local", "fn f() { use crate::b::B; }", &["a.rs -> b.rs"]);
}

#[test]
fn paths_in_macros_and_attributes_are_found() {
    check("macro", r#"fn f() { println!("{}", crate::b::deep::D); }"#, &["a.rs -> b.rs"]);
    check("rules", "macro_rules! m { () => { $crate::c::Renamed } }", &["a.rs -> c/leaf.rs"]);
    check("attribute", r#"struct A { #[serde(with = "crate::b")] x: u8 }"#, &["a.rs -> b.rs"]);
    check("absolute", "fn f() { println!(\"{}\", ::b::b(), x: y); }", &[]);
}

#[test]
fn code_without_dependencies_adds_no_edge() {
    check("declaration", "mod inner;", &[]);
    check("tests", "#[cfg(test)] mod tests { use crate::b::B; }", &[]);
    check("all", "#[cfg(all(test, unix))] use crate::b::B;", &[]);
    check("method", "impl A { #[cfg(test)] fn f() { crate::b::b() } }", &[]);
    check("visibility", "pub(in crate::a) struct A;", &[]);
    check("external", "use std::fmt; use serde::b; fn f() { b::b() }", &[]);
    check("variable", "fn f(b: u8, c: u8) -> u8 { b + c }", &[]);
}

/// A ring of `files` files.
fn ring(name: &str, files: usize) -> Crate {
    let mut texts = vec![("lib.rs".to_owned(), (0..files).map(|n| format!("mod m{n};")).collect())];
    for n in 0..files {
        texts.push((
            format!("m{n}.rs"),
            format!("pub struct S;\nfn f() {{ crate::m{}::S; }}", (n + 1) % files),
        ));
    }
    let texts: Vec<_> = texts.iter().map(|(path, text): &(String, String)| (&**path, &**text)).collect();
    Crate::new(name, &texts)
}

#[test]
fn an_import_cycle_over_five_files_is_reported() {
    assert_eq!(circle_problem("x", &ring("five", 5).graph()), None);
    let problem = circle_problem("x", &ring("six", 6).graph()).unwrap();
    assert!(
        problem.starts_with("x: a circle may have at most 5 files; 6 files import each other"),
        "{problem}"
    );
    assert!(problem.contains("m0.rs:2 -> ") && problem.ends_with("m1.rs (leaves 0)"), "{problem}");
}
