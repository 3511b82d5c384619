//! Static sites.

use crate::framework::Framework;
use crate::plan::{Plan, Serve};
use crate::view::View;

pub(crate) fn plan(view: &View) -> Option<Plan> {
    let (directory, reason) = match view.text("Staticfile") {
        Some(text) => {
            let root = text.lines().find_map(|line| line.trim().strip_prefix("root:"));
            let root = root.map(|root| root.trim().trim_matches('"').trim_end_matches('/').to_owned());
            (root.unwrap_or_default(), "there is a Staticfile")
        }
        None if view.has("public/index.html") => ("public".to_owned(), "there is public/index.html"),
        None if view.has("index.html") => (String::new(), "there is index.html"),
        None => return None,
    };
    let serve = Serve::Files { directory, single_page: false };
    Some(Plan::new(Framework::Static, serve, format!("detected static because {reason}")))
}
