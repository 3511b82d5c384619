/**
 * PandaStack: machines of their own kernel for code that nobody trusts.
 *
 * ```ts
 * import { PandaStack } from "@pandastack/sdk";
 *
 * const client = new PandaStack();
 * await using sandbox = await client.sandboxes.create({ template: "code-interpreter" });
 * console.log((await sandbox.exec("python -c 'print(2 ** 10)'")).stdout);
 * ```
 *
 * @packageDocumentation
 */

export { PandaStack, PandaStack as Client, SandboxesAPI } from "./client.js";
export type {
  AttachVolume,
  PandaStackOptions,
  PandaStackOptions as ClientConfig,
  RunOptions,
  SandboxCreateOptions,
} from "./client.js";
export {
  ArgumentTypeError,
  AuthError,
  BadRequestError,
  CapacityError,
  CommandError,
  ConflictError,
  ExecInterrupted,
  NetworkError,
  NotFoundError,
  PandaStackError,
  PermissionDeniedError,
  RateLimitError,
  RequestTimeout,
  SandboxTimeout,
  ServerError,
  TemplateBuildError,
} from "./errors.js";
export type { ErrorDetails } from "./errors.js";
export { ExecStream } from "./exec-stream.js";
export type { OutputCallbacks, OutputGap } from "./exec-stream.js";
export type { AuditEntry, AuditVerification } from "./audit.js";
export type { OutdatedComponent, OutdatedList, OutdatedState } from "./audit.js";
export { CodeContext } from "./contexts.js";
export type { Execution, Result, RunCodeOptions } from "./contexts.js";
export { ConsoleAPI, type ConsoleSession, type LoginProvider } from "./console.js";
export { Terminal, type TerminalOptions } from "./terminal.js";
export { ExploreError } from "./explore.js";
export type { BranchOutcome, Candidate, ExploreOptions, ExploreResult } from "./explore.js";
export { SandboxFilesystem } from "./filesystem.js";
export type { DownloadOptions, ReadRange, WriteOptions } from "./filesystem.js";
export type {
  Checkpoints,
  CreatedToken,
  Egress,
  ExecChunk,
  ExecResult,
  FileChange,
  FileInfo,
  GrepMatch,
  Keep,
  LifecycleInfo,
  LineageInfo,
  MeInfo,
  NetworkPolicy,
  OnTimeout,
  PortInfo,
  PromoteResult,
  RequiredIsolation,
  RunResult,
  SandboxEvent,
  SandboxInfo,
  SandboxMetrics,
  SnapshotInfo,
  VolumeInfo,
  TokenInfo,
  Usage,
  WireRecord,
  WorkspaceInfo,
  WriteResult,
  Visibility,
} from "./models.js";
export { Process } from "./process.js";
export type { ProcessInfo, StartOptions, TerminalSize } from "./process.js";
export { type FunctionInfo, type FunctionOptions, type FunctionMetrics, type FunctionRun, type FunctionVersion, FunctionsAPI } from "./functions.js";
export {
  type AppEnvOptions,
  type AppInfo,
  type AppInstance,
  type AppInstanceMetrics,
  type AppMetrics,
  AppsAPI,
  type DeployAppOptions,
  type DeploymentInfo,
} from "./apps.js";
export {
  type BranchDatabaseOptions,
  type CreateDatabaseOptions,
  type Database,
  type DatabaseBackups,
  type DatabaseBaseBackup,
  type DatabaseConnection,
  type DatabaseDrill,
  DatabasesAPI,
  type DatabaseRows,
  type DatabaseStats,
  type RestoreDatabaseOptions,
} from "./databases.js";
export { SnapshotsAPI, TemplatesAPI, TokensAPI, WorkspacesAPI } from "./resources.js";
export type { CreateTokenOptions, QuotaLimits } from "./resources.js";
export { TemplateRecipe } from "./recipe.js";
export type {
  BuildTemplateOptions,
  ReadyCheck,
  ShareTemplateOptions,
  TemplateBuild,
  TemplateBuildStep,
  TemplateInfo,
} from "./template-builds.js";
export { type AddMemberOptions, type Member, MembersAPI, type MemberSession } from "./members.js";
export { VolumesAPI } from "./volumes.js";
export {
  type CreateWebhookOptions,
  type HeaderEntries,
  type UpdateWebhookOptions,
  verifyWebhook,
  type Webhook,
  type WebhookDelivery,
  WebhooksAPI,
  WebhookVerificationError,
} from "./webhooks.js";
export type { CreateRetryEvent } from "./retry.js";
export { Sandbox } from "./sandbox.js";
export type { SandboxExecOptions } from "./commands.js";
export type { LifecycleChange } from "./sandbox.js";
export { SchedulesAPI } from "./schedules.js";
export type { NextRuns, ScheduleInfo, ScheduleOptions, ScheduleRun, ScheduleTarget } from "./schedules.js";
export { VERSION } from "./version.js";
export type { Command, ExecOptions } from "./wire.js";
