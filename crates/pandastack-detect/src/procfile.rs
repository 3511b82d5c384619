//! `Procfile`: the process called `web`.

use crate::view::View;

/// The command of `web:`.
pub(crate) fn web(view: &View) -> Option<String> {
    let text = view.text("Procfile")?;
    let line = text.lines().find_map(|line| line.trim().strip_prefix("web:"))?;
    let command = line.trim();
    (!command.is_empty()).then(|| command.to_owned())
}
