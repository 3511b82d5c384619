//! Listing sandboxes, filtered and in pages.

use axum::extract::RawQuery;
use axum::response::Response;
use jiff::Timestamp;
use pandastack_types::api::{Items, Metadata, Sandbox};

use super::extract::Authenticated;
use super::paging::page;
use super::query::{pairs, percent_decode};
use super::shape;
use super::template_name::template_name;
use crate::error::{RestError, RestResult};
use crate::native_paths as paths;
use crate::sandbox_state::is_visible;

/// Filter parameters of a list.
#[derive(Debug, Default, PartialEq)]
struct Filter {
    metadata: Metadata,
    states: Vec<String>,
    template: Option<String>,
    started_after: Option<Timestamp>,
    ascending: bool,
    limit: Option<usize>,
    next_token: Option<String>,
}

/// Sandboxes of the key's workspace, newest first.
pub(super) async fn list(
    Authenticated(caller): Authenticated,
    RawQuery(query): RawQuery,
) -> RestResult<Response> {
    let filter = Filter::parse(query.as_deref().unwrap_or_default())?;
    let Items { mut items } = caller.get::<Items<Sandbox>>(paths::SANDBOXES).await?;
    items.retain(|sandbox| is_visible(sandbox) && filter.matches(sandbox));
    items.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
    if !filter.ascending {
        items.reverse();
    }
    let items = items.iter().map(|sandbox| (sandbox.id.to_string(), shape::listed(sandbox))).collect();
    page(items, filter.limit, filter.next_token.as_deref())
}

impl Filter {
    fn parse(query: &str) -> RestResult<Self> {
        let mut filter = Filter::default();
        for (key, value) in pairs(query) {
            match key.as_str() {
                "metadata" => filter.metadata = metadata(&value),
                "state" => filter.states.extend(value.split(',').map(|state| state.trim().to_owned())),
                "template" => filter.template = Some(template_name(&value)),
                "startedAfter" => filter.started_after = Some(parsed("startedAfter", &value)?),
                "order" if value == "asc" => filter.ascending = true,
                "order" if value == "desc" => filter.ascending = false,
                "order" => return Err(RestError::bad_request("`order` must be asc or desc")),
                "limit" => filter.limit = Some(parsed("limit", &value)?),
                "nextToken" => filter.next_token = Some(value),
                _ => {}
            }
        }
        Ok(filter)
    }

    fn matches(&self, sandbox: &Sandbox) -> bool {
        let labelled = self.metadata.iter().all(|(key, value)| sandbox.metadata.get(key) == Some(value));
        let state = self.states.is_empty() || self.states.iter().any(|state| state == shape::state(sandbox));
        let template = self.template.as_ref().is_none_or(|name| *name == sandbox.template);
        let started = self.started_after.is_none_or(|after| sandbox.created_at >= after);
        labelled && state && template && started
    }
}

fn parsed<T: std::str::FromStr>(name: &str, value: &str) -> RestResult<T> {
    value.parse().map_err(|_| RestError::bad_request(format!("invalid value for `{name}`")))
}

/// The filter by labels is encoded three times: as a query value, as a query string, and key and value once more.
fn metadata(value: &str) -> Metadata {
    pairs(value).map(|(key, value)| (percent_decode(&key), percent_decode(&value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_decoded_three_times() {
        // quote -> urlencode -> query value, as the Python client does for {"a b": "1&2"}.
        let query = "metadata=a%252520b%3D1%2525262&state=running,paused&limit=5&order=asc";
        let filter = Filter::parse(query).unwrap();
        assert_eq!(filter.metadata, [("a b".to_owned(), "1&2".to_owned())].into());
        assert_eq!(filter.states, ["running", "paused"]);
        assert_eq!((filter.limit, filter.ascending), (Some(5), true));
    }

    #[test]
    fn the_started_after_filter_is_inclusive() {
        let sandbox: Sandbox = serde_json::from_value(serde_json::json!({
            "id": "a", "workspace": "default", "template": "base", "cpu": 1, "memory_mb": 512,
            "status": "running", "host_reachable": true, "engine": "qemu", "isolation": "emulated",
            "metadata": {}, "persistent": false, "created_at": "2026-01-31T00:00:00.5Z",
        }))
        .unwrap();
        for (after, listed) in [("00.4Z", true), ("00.5Z", true), ("00.6Z", false)] {
            let filter = Filter::parse(&format!("startedAfter=2026-01-31T00:00:{after}")).unwrap();
            assert_eq!(filter.matches(&sandbox), listed, "{after}");
        }
    }

    #[test]
    fn broken_filters_are_refused() {
        for query in ["limit=x", "order=up", "startedAfter=yesterday"] {
            assert!(Filter::parse(query).is_err(), "{query}");
        }
    }
}
