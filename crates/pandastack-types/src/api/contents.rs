//! Masking of contents that not every reader may see: values that may be secret, and program
//! output.

use std::collections::BTreeMap;

use super::{App, Build, Function, ReadyCheck, Schedule, ScheduleTarget, Template};

/// Stands in for a value that is not shown.
pub const MASK: &str = "********";

/// A description that includes contents, such as values of variables.
pub trait Contents {
    /// Masks the contents. Names stay, such as those of variables.
    fn mask(&mut self);
}

fn mask_values(values: &mut BTreeMap<String, String>) {
    values.values_mut().for_each(|value| *value = MASK.to_owned());
}

fn mask_text(text: &mut Option<String>) {
    *text = text.take().map(|_| MASK.to_owned());
}

/// Leaves scheme, host and port. A user, a path or a query may be all that an address needs to be used.
pub(super) fn mask_url(url: &mut String) {
    let rest = url.find("://").map_or(0, |at| at + 3);
    let authority_end = url[rest..].find(['/', '?', '#']).map_or(url.len(), |at| rest + at);
    if let Some(at) = url[rest..authority_end].rfind('@') {
        url.replace_range(rest..=rest + at, "");
    }
    let host = url[rest..].find(['/', '?', '#']).map(|at| rest + at);
    if let Some(end) = host {
        url.truncate(end);
        *url += "/";
        *url += MASK;
    }
}

impl<T: Contents> Contents for Vec<T> {
    fn mask(&mut self) {
        self.iter_mut().for_each(Contents::mask);
    }
}

/// Headers, variables, bodies, inputs and statements.
impl Contents for ScheduleTarget {
    fn mask(&mut self) {
        match self {
            Self::Http(target) => {
                mask_values(&mut target.headers);
                mask_text(&mut target.body);
            }
            Self::App(target) => {
                mask_values(&mut target.headers);
                mask_text(&mut target.body);
            }
            Self::Command(target) => {
                target.exec.env.iter_mut().for_each(mask_values);
                mask_text(&mut target.exec.stdin);
            }
            Self::Function(target) => target.input = target.input.take().map(|_| MASK.into()),
            Self::Sql(target) => MASK.clone_into(&mut target.sql),
            Self::Sandbox(_) | Self::Template(_) => {}
        }
    }
}

impl Contents for Schedule {
    fn mask(&mut self) {
        self.target.mask();
        if let ScheduleTarget::Http(target) = &mut self.target {
            mask_url(&mut target.url);
        }
        if let Some(alert) = &mut self.options.alert {
            mask_url(&mut alert.url);
        }
    }
}

impl Contents for Function {
    fn mask(&mut self) {
        mask_values(&mut self.env);
    }
}

impl Contents for App {
    fn mask(&mut self) {
        mask_values(&mut self.env);
    }
}

impl Contents for Build {
    fn mask(&mut self) {
        self.log.clear();
        if let Some(failure) = &mut self.failure {
            failure.output.clear();
        }
    }
}

impl Contents for Template {
    fn mask(&mut self) {
        if let Some(version) = &mut self.version {
            mask_values(&mut version.config.env);
            mask_text(&mut version.start_command);
            if let Some(ReadyCheck::Command(command)) = &mut version.ready {
                MASK.clone_into(command);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_masked_target_has_no_secret() {
        let headers = json!({ "authorization": "hush" });
        for target in [
            json!({ "type": "http", "url": "https://a.example", "headers": headers, "body": "hush" }),
            json!({ "type": "app", "app_id": "shop", "headers": headers, "body": "hush" }),
            json!({ "type": "command", "cmd": "true", "env": headers, "stdin": "hush" }),
            json!({ "type": "function", "function_id": "f", "input": { "password": "hush" } }),
            json!({ "type": "sql", "database_id": "d", "sql": "ALTER ROLE a PASSWORD 'hush'" }),
        ] {
            let mut target: ScheduleTarget = serde_json::from_value(target).unwrap();
            target.mask();
            let text = serde_json::to_string(&target).unwrap();
            assert!(!text.contains("hush") && text.contains(MASK), "{text}");
        }
    }

    #[test]
    fn masked_urls_keep_only_the_host() {
        let masked = |url: &str| {
            let mut url = url.to_owned();
            mask_url(&mut url);
            url
        };
        assert_eq!(masked("https://hooks.example/T1/hush"), format!("https://hooks.example/{MASK}"));
        assert_eq!(masked("https://hooks.example?key=hush"), format!("https://hooks.example/{MASK}"));
        assert_eq!(masked("https://hooks.example"), "https://hooks.example");
        assert_eq!(masked("https://user:hush@hooks.example/x"), format!("https://hooks.example/{MASK}"));
        assert_eq!(masked("https://hush@hooks.example"), "https://hooks.example");
        assert_eq!(masked("https://hooks.example/a@hush"), format!("https://hooks.example/{MASK}"));
        assert_eq!(masked("a/hush"), format!("a/{MASK}"));
    }
}
