//! Resource usage of an app.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{GuestView, HostView};
use crate::{DeploymentId, SandboxId, SandboxState};

/// Response of `GET /v1/apps/{id}/metrics`: current resource usage of the live version. Does not wake the
/// app.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AppMetrics {
    /// Time of the measurement.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// Deployment that is live; absent before the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployment_id: Option<DeploymentId>,
    /// Sum over all instances. Totals since creation cover only these instances.
    pub total: HostView,
    /// Usage of each instance, in the order in which they receive requests.
    pub instances: Vec<AppInstanceMetrics>,
}

/// Resource usage of one instance of an app.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AppInstanceMetrics {
    /// Sandbox of the instance.
    pub sandbox_id: SandboxId,
    /// Current state; also `failed` for a lost instance until it is replaced.
    pub status: SandboxState,
    /// Usage as measured by the host; absent if the host does not respond or the instance is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostView>,
    /// Usage as measured in the guest; absent while the instance is not running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<GuestView>,
}

impl HostView {
    /// Sums the usage of several machines; `cpu_used_percent` is the share of all their processors.
    pub fn total<'a>(views: impl IntoIterator<Item = &'a HostView>) -> HostView {
        let (mut total, mut used) = (HostView::default(), 0.0);
        for view in views {
            used += view.cpu_used_percent * f64::from(view.cpu_count);
            total.cpu_count += view.cpu_count;
            total.cpu_ms += view.cpu_ms;
            total.memory_bytes += view.memory_bytes;
            total.memory_limit_bytes += view.memory_limit_bytes;
            total.disk_bytes += view.disk_bytes;
            total.sent_bytes += view.sent_bytes;
            total.received_bytes += view.received_bytes;
        }
        let share = used / f64::from(total.cpu_count.max(1));
        HostView { cpu_used_percent: (share * 10.0).round() / 10.0, ..total }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn app_metrics_sum_machines_and_weight_cpu_shares() {
        let view = |cpu_count, cpu_used_percent| HostView {
            cpu_count,
            cpu_ms: 10,
            cpu_used_percent,
            memory_bytes: 5,
            memory_limit_bytes: 7,
            disk_bytes: 3,
            sent_bytes: 2,
            received_bytes: 1,
        };
        let total = HostView::total(&[view(1, 90.0), view(3, 10.0)]);
        let expect = HostView {
            cpu_count: 4,
            cpu_ms: 20,
            cpu_used_percent: 30.0,
            memory_bytes: 10,
            memory_limit_bytes: 14,
            disk_bytes: 6,
            sent_bytes: 4,
            received_bytes: 2,
        };
        assert_eq!(total, expect);
        assert_eq!(HostView::total(&[]), HostView::default());
    }
}
