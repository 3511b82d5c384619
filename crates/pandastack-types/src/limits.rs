//! Limits of the API, each with what happens beyond it.

mod schedules;
mod webhooks;

pub use schedules::*;
pub use webhooks::*;

/// Largest JSON request body. Beyond it: 413 `body_too_large`.
pub const JSON_BODY_BYTES_MAX: usize = 1024 * 1024;
/// Largest body of a sign-in to the console, which is read before a key is known. Beyond it: 413
/// `body_too_large`.
pub const SIGN_IN_BYTES_MAX: usize = 1024;
/// Longest time for that body to arrive. Beyond it: 408 `request_timeout`.
pub const SIGN_IN_SECONDS_MAX: u64 = 10;
/// Longest time for a JSON request body to arrive. Beyond it: 408 `request_timeout`.
pub const JSON_BODY_SECONDS_MAX: u64 = 30;
/// Largest file accepted by one `PUT /fs`. Beyond it: 413 `body_too_large`. Bodies stream; memory does not grow with it.
pub const FILE_BODY_BYTES_MAX: u64 = 8 * 1024 * 1024 * 1024;
/// Bytes a plain exec keeps of each output stream. Beyond it the rest is dropped and `truncated` is true.
pub const EXEC_OUTPUT_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Bytes of output and listings of one sandbox that its host holds until callers have read them. Beyond it
/// output is dropped and lists are cut, `truncated` is true; new calls are refused with 429 `rate_limited`.
pub const OUTPUT_BYTES_HELD_PER_SANDBOX_MAX: usize = 64 * 1024 * 1024;
/// The same for all sandboxes of a workspace on one host.
pub const OUTPUT_BYTES_HELD_PER_WORKSPACE_MAX: usize = 96 * 1024 * 1024;
/// The same for all sandboxes of a host. New calls are refused with 503 `unavailable`.
pub const OUTPUT_BYTES_HELD_PER_HOST_MAX: usize = 384 * 1024 * 1024;
/// Bytes that the sandboxes of a workspace may hold on a host even if others use up its total.
pub const OUTPUT_BYTES_RESERVED_PER_WORKSPACE: usize = 4 * 1024 * 1024;
/// First bytes of each output stream of a command, which count against no limit: small commands
/// never fail because of large ones.
pub const OUTPUT_BYTES_FREE: usize = 16 * 1024;
/// Bytes of each output stream that a server keeps of commands it runs for itself, such as those of builds: the end.
pub const OWN_OUTPUT_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Bytes of one listing or search that its host holds. Beyond it the answer is `truncated`.
pub const LIST_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Longest command string. Beyond it: 400 `bad_request`.
pub const EXEC_COMMAND_BYTES_MAX: usize = 128 * 1024;
/// Longest path in a sandbox: Linux's `PATH_MAX`.
pub const PATH_BYTES_MAX: usize = 4096;
/// Longest exec timeout. Beyond it: 400 `bad_request`.
pub const EXEC_TIMEOUT_SECONDS_MAX: u64 = 24 * 3600;
/// Timeout of an exec that names none.
pub const EXEC_TIMEOUT_SECONDS_DEFAULT: u64 = 300;
/// Bytes of one `POST .../stdin`. They stream, as fast as the process reads. Beyond it: 413 `body_too_large`.
pub const STDIN_BODY_BYTES_MAX: u64 = 1024 * 1024 * 1024;
/// Code of one run in a context. Beyond it: 413 `body_too_large`.
pub const CODE_BYTES_MAX: usize = 1024 * 1024;
/// One event of a run in a context, a result with its pictures among them, and all results of an answer. Beyond it a
/// run ends with an error, and an answer is `truncated`.
pub const CONTEXT_LINE_BYTES_MAX: usize = 32 * 1024 * 1024;
/// Bytes of a process's tag. Beyond it: 400 `bad_request`.
pub const PROCESS_TAG_BYTES_MAX: usize = 256;
/// Least memory that a process can be limited to. Below it: 400 `bad_request`.
pub const PROCESS_MEMORY_MB_MIN: u64 = 1;
/// Most that a process can be limited to; beyond it nothing would be limited: 400 `bad_request`.
pub const PROCESS_MEMORY_MB_MAX: u64 = 1024 * 1024;
/// Least and most processors of a limit. Outside: 400 `bad_request`.
pub const PROCESS_CPU_RANGE: std::ops::RangeInclusive<f64> = 0.01..=1024.0;
/// Rows or columns of a terminal. Outside: 400 `bad_request`.
pub const TERMINAL_SIDE_MAX: u16 = 4096;
/// Longest wait of one `GET .../wait`. Beyond it: 400 `bad_request`.
pub const PROCESS_WAIT_SECONDS_MAX: u64 = 300;
/// Commands in progress at once on one WebSocket. Beyond it a command is refused with `no_capacity`.
pub const SOCKET_COMMANDS_MAX: usize = 64;
/// One WebSocket message. Beyond it the socket is closed.
pub const SOCKET_MESSAGE_BYTES_MAX: usize = 1024 * 1024;
/// Virtual processors of one sandbox. Beyond it: 400 `bad_request`.
pub const SANDBOX_CPU_MAX: u32 = 8;
/// Least and most memory of one sandbox. Outside, or between two steps of [`SANDBOX_MEMORY_MB_STEP`]: 400 `bad_request`.
pub const SANDBOX_MEMORY_MB_RANGE: std::ops::RangeInclusive<u32> = 256..=32_768;
/// Steps of memory sizes: each size that is used is baked once per template and host.
pub const SANDBOX_MEMORY_MB_STEP: u32 = 128;
/// Sizes of one template that a host keeps baked beside the template's own; the least recently used goes first.
pub const TEMPLATE_SIZES_MAX: usize = 8;
/// Lifetime of a sandbox that names none.
pub const TTL_SECONDS_DEFAULT: u64 = 3600;
/// Longest lifetime short of `persistent`. Beyond it: 400 `bad_request`.
pub const TTL_SECONDS_MAX: u64 = 30 * 24 * 3600;
/// Idle time after which a persistent sandbox hibernates.
pub const IDLE_SECONDS_DEFAULT: u64 = 300;
/// Longest keep-awake lease. Beyond it: 400 `bad_request`; renew it instead.
pub const KEEP_AWAKE_SECONDS_MAX: u64 = 24 * 3600;
/// Least time between two automatic checkpoints. Below it: 400 `bad_request`.
pub const CHECKPOINT_SECONDS_MIN: u64 = 10;
/// Checkpoints kept of a sandbox that names no number.
pub const CHECKPOINTS_KEPT_DEFAULT: u32 = 5;
/// Largest `keep_last`. Beyond it: 400 `bad_request`.
pub const KEEP_LAST_MAX: u32 = 1_000;
/// Snapshots of one workspace that may exist at once. Beyond it: 429 `quota_exceeded`.
pub const SNAPSHOTS_PER_WORKSPACE_MAX: u64 = 2_000;
/// Ancestors of a sandbox that are remembered; the farthest are forgotten first.
pub const ANCESTORS_MAX: usize = 64;
/// Metadata pairs of one sandbox. Beyond it: 400 `bad_request`.
pub const METADATA_PAIRS_MAX: usize = 64;
/// Bytes of one metadata key or value. Beyond it: 400 `bad_request`.
pub const METADATA_TEXT_BYTES_MAX: usize = 4096;
/// Environment variables of one sandbox or command. Beyond it: 400 `bad_request`.
pub const ENV_PAIRS_MAX: usize = 256;
/// Children of one fork-tree call. Beyond it: 400 `bad_request`.
pub const FORK_TREE_COUNT_MAX: u32 = 100;
/// Entries of each list of a network policy. Beyond it: 400 `bad_request`.
pub const NETWORK_TARGETS_MAX: usize = 256;
/// Port ranges of one entry of a network policy. Beyond it: 400 `bad_request`.
pub const NETWORK_TARGET_PORTS_MAX: usize = 16;
/// Bytes of a name in a network policy. Beyond it: 400 `bad_request`.
pub const NETWORK_NAME_BYTES_MAX: usize = 253;
/// Different sets of ports that the names of each list of a network policy have. Beyond it: 400 `bad_request`.
pub const NETWORK_PORT_CLASSES_MAX: usize = 16;
/// Combinations of networks and ports that a network policy comes to. Beyond it: 400 `bad_request`.
pub const NETWORK_OPENINGS_MAX: usize = 1024;
/// Bytes of the operator's certificates for guests, about ten. Beyond it: the agent does not start. They are
/// sent with every identity, in one frame.
pub const GUEST_CA_BYTES_MAX: usize = 16 * 1024;
/// Bytes of the address of a package mirror. Beyond it: the server does not start.
pub const GUEST_MIRROR_BYTES_MAX: usize = 1024;
/// Entries of the operator's list of addresses for guests. Beyond it: the agent does not start.
pub const GUEST_ALLOW_MAX: usize = 64;
/// Time that a create waits for its template to be baked. Beyond it: 503 `template_baking`.
pub const BAKE_HOLD_SECONDS: u64 = 25;
/// Time that an `Idempotency-Key` is remembered.
pub const IDEMPOTENCY_SECONDS: u64 = 24 * 3600;
/// Longest `Idempotency-Key`. Beyond it: 400 `bad_request`.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 255;
/// Sandboxes of one workspace that may exist at once. Beyond it: 429 `quota_exceeded`.
pub const SANDBOXES_PER_WORKSPACE_MAX: u64 = 2_000;
/// Databases of one workspace that may exist at once. Beyond it: 429 `quota_exceeded`.
pub const DATABASES_PER_WORKSPACE_MAX: u64 = 200;
/// Bytes of a database's label. Beyond it: 400 `bad_request`.
pub const DATABASE_LABEL_BYTES_MAX: usize = 256;
/// Rows that a query over the API returns unless it asks for fewer. Beyond it the answer is `truncated`.
pub const DATABASE_ROWS_MAX: u32 = 10_000;
/// Longest time of a query over the API. Beyond it: 400 `bad_request`.
pub const DATABASE_QUERY_MS_MAX: u64 = 600_000;
/// Idle time after which a database that is not `always_on` sleeps.
pub const DATABASE_IDLE_SECONDS: u64 = 300;
/// Requests a workspace may make per second, on average, unless the operator sets another number. Beyond it: 429
/// `rate_limited` with `Retry-After`.
pub const REQUESTS_PER_SECOND_DEFAULT: u32 = 1_000;
/// Requests a workspace may make at once after a pause, as seconds of its rate.
pub const REQUEST_BURST_SECONDS: u32 = 2;
/// Invalid keys that one address may send at once. Beyond it: 429 `rate_limited` for every key that
/// was never valid here.
pub const KEY_FAILURES_BURST: f64 = 30.0;
/// Rate at which failed key attempts of an address are forgiven.
pub const KEY_FAILURES_PER_SECOND: f64 = 0.5;
/// Keys of one workspace. Beyond it: 429 `quota_exceeded`.
pub const TOKENS_PER_WORKSPACE_MAX: u64 = 100;
/// Members of one workspace. Beyond it: 429 `quota_exceeded`.
pub const MEMBERS_PER_WORKSPACE_MAX: u64 = 1_000;
/// Sessions of one member. One more ends the one that began first.
pub const SESSIONS_PER_MEMBER_MAX: u32 = 20;
/// Longest email address or subject of a member. Beyond it: 400 `bad_request`.
pub const MEMBER_TEXT_BYTES_MAX: usize = 256;
/// Largest body of a sign-in on a device, which is read before the client is authenticated. Beyond
/// it: 413 `body_too_large`.
pub const LOGIN_BYTES_MAX: usize = 16 * 1024;
/// Calls to the login provider at once. Beyond it: 503 `unavailable` with `Retry-After`.
pub const LOGIN_CALLS_MAX: usize = 16;
/// Streams of events that one key follows at once. Beyond it: 429 `quota_exceeded`.
pub const EVENT_FOLLOWERS_PER_KEY_MAX: u32 = 32;
/// Streams of events that the keys of one workspace follow at once. Beyond it: 429 `quota_exceeded`.
pub const EVENT_FOLLOWERS_PER_WORKSPACE_MAX: u32 = 256;
/// Events kept for one sandbox and returned by one call.
pub const EVENTS_PAGE_MAX: u32 = 1_000;
/// Bytes of console log returned by one call.
pub const LOG_BYTES_MAX: u64 = 1024 * 1024;
/// Bytes that a machine's console log, and its emulator's, may take on disk. Beyond it, the oldest bytes are
/// removed until [`LOG_KEPT_BYTES`] are left. The size is checked once a second and may be larger until then.
pub const LOG_FILE_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// Bytes of a log that are kept when it was too long.
pub const LOG_KEPT_BYTES: u64 = 4 * 1024 * 1024;
/// Entries of a recursive listing or a find that names no limit.
pub const FILES_FOUND_DEFAULT: u32 = 10_000;
/// Most entries of a recursive listing or a find. Beyond it: 400 `bad_request`.
pub const FILES_FOUND_MAX: u32 = 50_000;
/// Matches of a search that names no limit. Beyond it the answer is `truncated`.
pub const GREP_MATCHES_DEFAULT: u32 = 1_000;
/// Most matches of a search. Beyond it: 400 `bad_request`.
pub const GREP_MATCHES_MAX: u32 = 10_000;
/// Life of a signed URL that names none.
pub const SIGNED_SECONDS_DEFAULT: u64 = 3600;
/// Longest life of a signed URL. Beyond it: 400 `bad_request`.
pub const SIGNED_SECONDS_MAX: u64 = 7 * 24 * 3600;
/// Smallest volume, in MiB: below it a file system is mostly its own bookkeeping. Less: 400 `bad_request`.
pub const VOLUME_MB_MIN: u64 = 16;
/// Largest volume, in MiB. Beyond it: 400 `bad_request`.
pub const VOLUME_MB_MAX: u64 = 65_536;
/// Volumes of one workspace. Beyond it: 429 `quota_exceeded`.
pub const VOLUMES_PER_WORKSPACE_MAX: u64 = 1_000;
/// Volumes that one sandbox may have. Beyond it: 400 `bad_request`.
pub const VOLUMES_PER_SANDBOX_MAX: usize = 4;
/// Characters of the name of a sandbox or database. Beyond it: 400 `bad_request`.
pub const NAME_CHARS_MAX: usize = 63;
/// Characters of a volume's name. Beyond it: 400 `bad_request`.
pub const VOLUME_NAME_CHARS_MAX: usize = 63;
/// Bytes of unfinished request bodies that the control server holds. Beyond it: 503 `unavailable`.
pub const BODY_BYTES_HELD_MAX: usize = 384 * 1024 * 1024;
/// Bytes of unfinished request bodies from one address: one of the largest, and many small ones. Beyond it:
/// 429 `rate_limited`.
pub const BODY_BYTES_HELD_PER_ADDRESS_MAX: usize = 96 * 1024 * 1024;
/// Bytes of a request body that do not count for its address.
pub const BODY_BYTES_FREE: usize = 16 * 1024;
/// Entries of the audit log returned by one call.
pub const AUDIT_PAGE_MAX: u32 = 1_000;
/// Entries of the audit log that one call verifies; the next call continues after them.
pub const AUDIT_VERIFY_MAX: u64 = 50_000;
/// Entries that the export of the audit log sends at once.
pub const AUDIT_EXPORT_BATCH_MAX: u32 = 500;
/// Refused requests per second that the audit log keeps. Those beyond are counted, and the number is logged.
pub const AUDIT_REFUSALS_PER_SECOND: u32 = 20;
/// Days that the audit log is kept.
pub const AUDIT_DAYS: i64 = 90;
/// Records that may wait to be written behind their answers, of the audit log and of calls of functions each. When it is
/// full, calls wait for their turn.
pub const WRITE_BEHIND_MAX: usize = 1024;
/// Sandboxes listed one by one in a usage report.
pub const USAGE_SANDBOXES_MAX: u32 = 1_000;
/// Functions of one workspace. Beyond it: 429 `quota_exceeded`.
pub const FUNCTIONS_PER_WORKSPACE_MAX: u64 = 500;
/// Bytes of a function's bundle as it is uploaded. Beyond it: 413 `body_too_large`.
pub const BUNDLE_BYTES_MAX: usize = 50 * 1024 * 1024;
/// Seconds for a bundle to arrive. Beyond it: 408 `request_timeout`.
pub const BUNDLE_SECONDS_MAX: u64 = 600;
/// Bytes of a bundle's files once unpacked. Beyond it: 400 `bad_request`, before anything is made of it.
pub const BUNDLE_UNPACKED_BYTES_MAX: u64 = 200 * 1024 * 1024;
/// Entries of a bundle. Beyond it: 400 `bad_request`.
pub const BUNDLE_ENTRIES_MAX: usize = 20_000;
/// Bytes of the event of a direct or HTTP call. Beyond it: 413 `body_too_large`.
pub const EVENT_BYTES_MAX: usize = 6 * 1024 * 1024;
/// Bytes of the event of a call of type `Event`, which is kept until it was served. Beyond it: 413 `body_too_large`.
pub const ASYNC_EVENT_BYTES_MAX: usize = 1024 * 1024;
/// Longest timeout of a function. Beyond it: 400 `bad_request`.
pub const FUNCTION_TIMEOUT_SECONDS_MAX: u64 = 3600;
/// Timeout of a function that names none.
pub const FUNCTION_TIMEOUT_SECONDS_DEFAULT: u64 = 60;
/// Most calls that one machine of a function serves at once. Beyond it: 400 `bad_request`.
pub const FUNCTION_CONCURRENCY_MAX: u32 = 64;
/// Most machines of one function. Beyond it: 400 `bad_request`.
pub const FUNCTION_INSTANCES_MAX: u32 = 200;
/// Machines of a function that names no number.
pub const FUNCTION_INSTANCES_DEFAULT: u32 = 10;
/// Most calls of one function that may wait for a machine. Beyond it: 400 `bad_request`.
pub const FUNCTION_QUEUE_MAX: u32 = 10_000;
/// Calls that may wait for a machine of a function that names no number. Beyond it: 429 `rate_limited`.
pub const FUNCTION_QUEUE_DEFAULT: u32 = 1_000;
/// Longest time that an idle machine of a function is kept. Beyond it: 400 `bad_request`.
pub const FUNCTION_IDLE_SECONDS_MAX: u64 = 3600;
/// Default time that an idle machine of a function is kept.
pub const FUNCTION_IDLE_SECONDS_DEFAULT: u64 = 60;
/// Most retries of a call of type `Event`. Beyond it: 400 `bad_request`.
pub const FUNCTION_RETRIES_MAX: u32 = 10;
/// Retries of a function that names no number.
pub const FUNCTION_RETRIES_DEFAULT: u32 = 2;
/// Default time that a call of type `Event` is retried.
pub const FUNCTION_AGE_SECONDS_DEFAULT: u64 = 6 * 3600;
/// Calls of type `Event` of one workspace that wait or run. Beyond it: 429 `quota_exceeded`.
pub const QUEUED_RUNS_PER_WORKSPACE_MAX: u64 = 100_000;
/// Notifications of `dead_letter_url` for one call. Beyond it, there are no further ones; the call
/// stays.
pub const DEAD_LETTER_NOTICES_MAX: u32 = 5;
/// Runs of one function that are kept. Beyond it the oldest that ended are forgotten.
pub const RUNS_KEPT_PER_FUNCTION: u32 = 10_000;
/// Runs returned by one call.
pub const RUNS_PAGE_MAX: u32 = 200;
/// Versions of one function. The oldest that nothing names are deleted beyond it.
pub const FUNCTION_VERSIONS_KEPT: usize = 20;
/// Longest time to install a function's dependencies. Beyond it the deploy fails.
pub const INSTALL_SECONDS_MAX: u64 = 900;
/// Longest time to import a handler. Beyond it the deploy fails.
pub const INIT_SECONDS_MAX: u64 = 180;
/// Time that a deploy call waits before it is answered with `deploy_status: building`.
pub const DEPLOY_HOLD_SECONDS: u64 = 25;
/// Bytes kept of each output stream of a run, of a command the last ones, of an answer the first ones. The rest is
/// dropped and `truncated` is true.
pub const RUN_OUTPUT_BYTES_MAX: usize = 64 * 1024;
/// Runs of one schedule in progress at once with `overlap: allow`. Beyond it they wait.
pub const RUNS_PER_SCHEDULE_MAX: u64 = 10;
/// Runs of one schedule that may wait for an earlier one. Beyond it they are skipped.
pub const RUNS_WAITING_MAX: u64 = 100;
/// Runs in progress at once in one control server. Beyond it they wait.
pub const RUNS_AT_ONCE_MAX: usize = 128;
/// Runs kept of one schedule, and most returned by one call.
pub const RUNS_KEPT_MAX: u32 = 1_000;
/// Days that runs are kept.
pub const RUN_DAYS: i64 = 30;
/// Restarts of the server that may cut off one run; then it failed.
pub const RUN_INTERRUPTIONS_MAX: u32 = 3;
/// Apps of one workspace. Beyond it: 429 `quota_exceeded`.
pub const APPS_PER_WORKSPACE_MAX: u64 = 200;
/// Bytes of one text of an app's settings. Beyond it: 400 `bad_request`.
pub const APP_TEXT_BYTES_MAX: usize = 4096;
/// Deployments of one app that are remembered; the oldest that are over are forgotten first.
pub const DEPLOYMENTS_PER_APP_MAX: u64 = 100;
/// Versions of an app kept asleep for a rollback, beside the live one; the oldest is deleted first.
pub const VERSIONS_KEPT: usize = 3;
/// Polling interval of an app's repository, in seconds. Outside of it: 400 `bad_request`.
pub const POLL_SECONDS_RANGE: std::ops::RangeInclusive<u64> = 30..=86_400;
/// Previews of one app. Beyond it: 429 `quota_exceeded` to the delivery that would make another.
pub const PREVIEWS_PER_APP_MAX: u64 = 20;
/// Repositories of one workspace with previews, or with variables for them. Beyond it: 429 `quota_exceeded`.
pub const PREVIEW_REPOS_PER_WORKSPACE_MAX: u64 = 200;
/// Versions of a preview kept asleep beside the live one.
pub const PREVIEW_VERSIONS_KEPT: usize = 1;
/// Closed pull requests of one app that are remembered, so that a late delivery does not bring a preview back.
pub const CLOSED_PULLS_KEPT: usize = 200;
/// Machines that serve one version of an app. Beyond it: 400 `bad_request`.
pub const INSTANCES_MAX: u32 = 10;
/// Databases attached to one app. Beyond it: 429 `quota_exceeded`.
pub const DATABASES_PER_APP_MAX: usize = 10;
/// Names of one app beside its own. Beyond it: 429 `quota_exceeded`.
pub const DOMAINS_PER_APP_MAX: u64 = 50;
/// Bytes of an uploaded source. Beyond it: 413 `body_too_large`. It streams; memory does not grow with it.
pub const SOURCE_BYTES_MAX: u64 = 512 * 1024 * 1024;
/// Bytes of a webhook's body. Beyond it: 413 `body_too_large`.
pub const HOOK_BODY_BYTES_MAX: usize = 25 * 1024 * 1024;
/// Longest time for the body of a request to a function's URL to arrive. Beyond it: 408 `request_timeout`.
pub const EVENT_SECONDS_MAX: u64 = 60;
/// Longest time for a webhook's body to arrive. Beyond it: 408 `request_timeout`.
pub const HOOK_BODY_SECONDS_MAX: u64 = 60;
/// Lines kept of a deployment's log; the rest is left out, which the log says, apart from how it ended.
pub const DEPLOY_LOG_LINES_MAX: u64 = 20_000;
/// Bytes of one line of it; the rest of the line is left out.
pub const DEPLOY_LOG_LINE_BYTES_MAX: usize = 4096;
/// Seconds that installing and building may take together. Beyond it: the deployment fails.
pub const BUILD_SECONDS_MAX: u64 = 1200;
/// Seconds that a new version may take to answer its health check. Beyond it: the deployment fails.
pub const HEALTH_SECONDS_MAX: u64 = 120;
/// Deployments in progress at once; the rest wait.
pub const DEPLOYS_AT_ONCE_MAX: usize = 4;

/// Outdated states in one list. Beyond it the list is not `complete`.
pub const OUTDATED_LISTED_MAX: usize = 10_000;

/// Templates of one workspace. Beyond it: 429 `quota_exceeded`.
pub const TEMPLATES_PER_WORKSPACE_MAX: u64 = 100;
/// Workspaces that one template is shared with by name. Beyond it: 400 `bad_request`.
pub const TEMPLATE_READERS_MAX: usize = 100;
/// Templates of other workspaces in one list; more are left out.
pub const SHARED_TEMPLATES_LISTED_MAX: u64 = 200;
/// Tags of one template. Beyond it: 429 `quota_exceeded`.
pub const TAGS_PER_TEMPLATE_MAX: u64 = 100;
/// Untagged versions that a template keeps; older ones are deleted.
pub const TEMPLATE_VERSIONS_KEPT: usize = 5;
/// Template builds of one workspace that are remembered; the oldest that no template needs are forgotten.
pub const TEMPLATE_BUILDS_KEPT: usize = 100;
/// Bytes of a template's description. Beyond it: 400 `bad_request`.
pub const TEMPLATE_DESCRIPTION_BYTES_MAX: usize = 4096;
/// Template builds in a list of a workspace's; older ones are left out.
pub const TEMPLATE_BUILDS_LISTED_MAX: u64 = 200;
/// Template builds of one workspace that may be queued or running. Beyond it: 429 `quota_exceeded`.
pub const TEMPLATE_BUILDS_IN_PROGRESS_MAX: u64 = 20;
/// Template builds that run at once on one server; others wait for their turn.
pub const TEMPLATE_BUILDS_AT_ONCE_MAX: usize = 4;
/// Template builds of one workspace that run at once; others wait, while other workspaces' builds run.
pub const TEMPLATE_BUILDS_PER_WORKSPACE_AT_ONCE_MAX: usize = 2;
/// Longest time that a build waits for its files and its start. Then it fails.
pub const TEMPLATE_BUILD_WAIT_SECONDS_MAX: u64 = 900;
/// Longest duration of a build. Then its step is killed and it fails.
pub const TEMPLATE_BUILD_SECONDS_MAX: u64 = 2 * 3600;
/// Seconds for which the machine of a failed build step is kept, if the build asks for it.
pub const TEMPLATE_DEBUG_SECONDS: u64 = 3600;
/// Longest time for a start command to become ready. Then the build fails.
pub const TEMPLATE_READY_SECONDS_MAX: u64 = 300;
/// Bytes of one upload of a build's files. Beyond it: 413 `body_too_large`.
pub const BUILD_CONTEXT_BYTES_MAX: u64 = 2 * 1024 * 1024 * 1024;
/// Registries that a build may have credentials for. Beyond it: 400 `bad_request`.
pub const BUILD_REGISTRIES_MAX: usize = 20;
/// Bytes of a registry's host name, user name or password. Beyond it: 400 `bad_request`.
pub const REGISTRY_CREDENTIAL_BYTES_MAX: usize = 16 * 1024;
/// Secrets that a build may have. Beyond it: 400 `bad_request`.
pub const BUILD_SECRETS_MAX: usize = 20;
/// Bytes of the id of a secret of a build. Beyond it: 400 `bad_request`.
pub const BUILD_SECRET_ID_BYTES_MAX: usize = 128;
/// Bytes of a secret of a build. Beyond it: 400 `bad_request`.
pub const BUILD_SECRET_BYTES_MAX: usize = 64 * 1024;
/// Lines of a build's log; further output of commands is dropped.
pub const BUILD_LOG_LINES_MAX: u64 = 50_000;
/// Bytes of a line of a build's log; the rest is dropped.
pub const BUILD_LOG_LINE_BYTES_MAX: usize = 4096;
/// Time that the result of a build step is kept after its last use.
pub const BUILD_LAYER_SECONDS_MAX: u64 = 7 * 24 * 3600;
/// Results of build steps that a workspace keeps; the least recently used go first.
pub const BUILD_LAYERS_MAX: usize = 200;
