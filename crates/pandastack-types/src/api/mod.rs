//! Requests and responses of the public API under `/v1`.
//!
//! The shapes are those that the published clients send and read; fields beyond those are additions.
//! Unknown request fields are refused, absent ones have defaults, and no response field that a client computes
//! with is ever `null`.

mod account;
mod app;
mod app_database;
mod app_env;
mod app_metrics;
mod app_preview;
mod command;
mod contents;
mod context;
mod database;
mod file;
mod function;
mod host;
mod key;
mod member;
mod next_runs;
mod observe;
mod outdated;
mod preview;
mod preview_repo;
mod process;
mod restore_point;
mod sandbox;
mod schedule;
mod schedule_target;
mod snapshot;
mod template;
mod template_build;
mod template_changes;
mod volume;
mod webhook;
mod workspace;

pub use account::{PatchWorkspace, Quota, QuotaReport, QuotaUse, Version, Workspace, WorkspaceSettings};
pub use app::{
    AddAppDomain, App, AppDomain, AppDomainList, AppInstance, AppSettings, AppStatus, CreateApp, DeployApp,
    Deployment, DeploymentStatus, DnsRecord, GitHost, HookAnswer, RollbackApp, UpdateApp,
};
pub use app_database::{AppDatabase, AttachDatabase};
pub use app_env::{
    AppEnv, AppEnvImported, AppEnvList, AppEnvSet, EnvScope, EnvStage, ImportAppEnv, SetAppEnv,
};
pub use app_metrics::{AppInstanceMetrics, AppMetrics};
pub use app_preview::{AppPreview, AppPreviews};
pub use command::{ExecRequest, ExecResult, RunRequest, RunResult};
pub use contents::{Contents, MASK};
pub use context::{
    CONTEXT_DEFAULT, CONTEXT_TAG, CodeContext, CreateContext, Execution, RunCode, SANDBOX_GONE_ERROR,
};
pub use database::{
    CloneDatabase, CreateDatabase, Database, DatabaseBackups, DatabaseBaseBackup, DatabaseColumn,
    DatabaseConnection, DatabaseDrill, DatabaseQuery, DatabaseRows, DatabaseStats, DatabaseStatus,
    DatabaseWaking, PatchDatabase, RestorablePeriod,
};
pub use file::{
    ChangeKind, CopyFile, DirectoryListing, FileChange, FileEntry, FileKind, FileWritten, GrepMatch,
    GrepResult, RenameFile, SetAttributes, SignFile, SignedUrl,
};
pub use function::{
    Alias, CreateFunction, DeployStatus, Function, FunctionMetrics, FunctionRunStatus, FunctionSettings,
    FunctionVersion, InvokeFunction, Isolation, PatchFunction, RecordRun, Redriven, RollbackFunction, Run,
    RunKind, Runtime,
};
pub use host::{CreateHostToken, Host, HostLink, HostMigration, HostToken, MigrateHosts};
pub use key::{CreateToken, Me, Role, RotateToken, Scope, TokenCreated, TokenInfo};
pub use member::{
    AddMember, DeviceLogin, FinishLogin, LoginOptions, LoginProgress, LoginProvider, LoginSession,
    LoginStatus, Member, MemberSession, PatchMember,
};
pub use next_runs::NextRuns;
pub use observe::{
    AuditEntry, AuditList, AuditVerification, FunctionUsage, GuestView, HostView, KindUsage, SandboxMetrics,
    SandboxUsage, UnknownUsageKind, UsageKind, UsageReport, UsageTotals,
};
pub use outdated::{
    AdvisoryMatch, Component, FrozenKind, OutdatedAction, OutdatedComponent, OutdatedList, OutdatedState,
};
pub use preview::{Preview, SetPreview, SignPreview, SignedPreview};
pub use preview_repo::{
    EnablePreviewRepo, GithubRepoId, GithubRepoIdError, ImportPreviewEnv, PreviewRepo, PreviewRepoList,
    SetPreviewEnv,
};
pub use process::{
    Process, ProcessLimits, ProcessList, ProcessState, Signal, SignalProcess, StartProcess, StdinWritten,
    TerminalSize,
};
pub use restore_point::RestorePoint;
pub use sandbox::{
    Checkpoints, CreateSandbox, Event, EventList, Hibernate, Items, Keep, KeepAwake, Lifecycle, Metadata,
    OnTimeout, PatchLifecycle, Port, PortList, RequiredIsolation, Sandbox, StatusAnswer,
};
pub use schedule::{
    CreateSchedule, MissedRuns, Overlap, PatchSchedule, PreviewSchedule, RunOrigin, RunStatus, Schedule,
    ScheduleAlert, ScheduleOptions, ScheduleRun, ScheduleTiming, TriggerSchedule,
};
pub use schedule_target::{
    AppTarget, CommandTarget, FunctionTarget, HttpTarget, SandboxAction, SandboxTarget, ScheduleTarget,
    SqlTarget, TemplateTarget,
};
pub use snapshot::{
    CreateSnapshot, ForkError, ForkSandbox, ForkTree, ForkTreeResult, Lineage, Promote, Promoted, Rollback,
    Snapshot, SnapshotKind, SnapshotList,
};
pub use template::{
    Build, BuildFailure, BuildStatus, CreateBuild, ImageConfig, PublishTemplate, SetTemplateTag,
    SignBuildFiles, Template, TemplateSharing, TemplateStatus, TemplateTag, TemplateVersion, TemplateVolume,
};
pub use template_build::{
    BuildCopy, BuildRun, BuildSecret, BuildStep, ReadyCheck, RegistryCredentials, StartBuild,
};
pub use template_changes::{PackageChange, TemplateChanges};
pub use volume::{
    AttachVolume, AttachedVolume, CloneVolume, CreateVolume, GrowVolume, PatchVolume, SnapshotVolume, Volume,
    VolumeHolder,
};
pub use webhook::{
    CreateWebhook, DeliveryState, PatchWebhook, UnknownWebhookEvent, Webhook, WebhookDelivery,
    WebhookEventKind, WebhookFilter,
};
pub use workspace::{CreateWorkspace, SuspendWorkspace, WorkspaceInfo, WorkspaceState};
