//! Rebuilds when a migration is added: the migrations are embedded by a macro that cannot say so itself.

fn main() {
    println!("cargo:rerun-if-changed=migrations");
}
