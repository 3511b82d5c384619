//! Converts function records to API responses.

use http::HeaderMap;
use pandastack_store::functions::{FunctionRecord, RunFigures, VersionRecord};
use pandastack_types::api::{DeployStatus, Function, FunctionMetrics, FunctionVersion};

use crate::settings;

/// A function, with its newest version.
pub(crate) fn function(record: FunctionRecord, versions: &[VersionRecord], headers: &HeaderMap) -> Function {
    let newest = versions.first();
    let called = versions.iter().find(|version| version.version == record.version).or(newest);
    let spec = record.spec;
    Function {
        url: crate::url::address(headers, &record.id),
        id: record.id,
        workspace: record.workspace,
        name: record.name,
        runtime: spec.runtime,
        entrypoint: spec.entrypoint,
        code_size: called.map_or(0, |version| version.spec.bundle_bytes),
        template: spec.template,
        env: spec.env,
        secrets: spec.secrets.into_keys().collect(),
        public: spec.public,
        // Published clients count deploys; the one in progress counts.
        version: newest
            .filter(|newest| newest.state == DeployStatus::Building)
            .map_or(record.version, |newest| newest.version),
        is_ready: record.version > 0,
        deploy_status: newest.map(|newest| newest.state),
        deploy_error: newest.and_then(|newest| newest.spec.error.clone()),
        aliases: spec.aliases,
        settings: settings::filled(&spec.settings),
        created_at: record.created_at,
        updated_at: record.updated_at,
    }
}

pub(crate) fn version(record: VersionRecord) -> FunctionVersion {
    FunctionVersion {
        version: record.version,
        status: record.state,
        error: record.spec.error,
        entrypoint: record.spec.entrypoint,
        code_sha256: record.spec.bundle,
        code_size: record.spec.bundle_bytes,
        build_ms: record.spec.build_ms,
        dependencies_reused: record.spec.layer_reused,
        created_at: record.created_at,
    }
}

/// Percentiles and rates.
pub(crate) fn metrics(period: u64, mut figures: Vec<RunFigures>, counts: (usize, usize)) -> FunctionMetrics {
    figures.sort_by_key(|figure| figure.duration_us);
    let total = figures.len();
    let of = |count: usize| if total == 0 { 0.0 } else { count as f64 / total as f64 };
    let percentile = |percent: usize| {
        let at = (total * percent).div_ceil(100).max(1) - 1;
        figures.get(at).map_or(0.0, |figure| figure.duration_us as f64 / 1000.0)
    };
    let errors = figures.iter().filter(|figure| figure.failed).count();
    FunctionMetrics {
        period,
        total: total as u64,
        errors: errors as u64,
        error_rate: of(errors),
        p50_ms: percentile(50),
        p95_ms: percentile(95),
        p99_ms: percentile(99),
        cold_start_rate: of(figures.iter().filter(|figure| figure.cold).count()),
        billed_ms: figures.iter().map(|figure| figure.billed_ms).sum(),
        instances: counts.0 as u64,
        waiting: counts.1 as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_durations_of_actual_calls() {
        let figure =
            |ms: u64| RunFigures { duration_us: ms * 1000, billed_ms: ms, cold: ms == 1, failed: ms > 98 };
        let all = metrics(24, (1..=100).rev().map(figure).collect(), (2, 3));
        assert_eq!((all.p50_ms, all.p95_ms, all.p99_ms), (50.0, 95.0, 99.0));
        assert_eq!((all.total, all.errors, all.cold_start_rate), (100, 2, 0.01));
        let none = metrics(24, Vec::new(), (0, 0));
        assert_eq!((none.total, none.p99_ms, none.error_rate), (0, 0.0, 0.0));
        assert_eq!(metrics(24, vec![figure(7)], (0, 0)).p50_ms, 7.0);
    }
}
