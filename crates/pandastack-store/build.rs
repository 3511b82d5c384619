//! Rebuilds when a migration is added: the macro that embeds the migrations cannot register that
//! itself.

fn main() {
    println!("cargo:rerun-if-changed=migrations");
}
