"""PandaStack: machines of their own kernel for code that nobody trusts.

    from pandastack import PandaStack

    client = PandaStack()
    with client.sandboxes.create(template="code-interpreter") as sandbox:
        print(sandbox.exec("python -c 'print(2 ** 10)'").stdout)

:class:`PandaStack` blocks, :class:`AsyncPandaStack` has the same methods for ``asyncio``.
"""

from __future__ import annotations

from ._async.apps import AsyncAppsAPI
from ._async.client import AsyncPandaStack, AsyncSandboxesAPI
from ._async.commands import AsyncSandboxCommands
from ._async.contexts import AsyncCodeContext
from ._async.databases import AsyncDatabasesAPI
from ._async.exec_stream import AsyncExecStream
from ._async.filesystem import AsyncSandboxFilesystem
from ._async.functions import AsyncFunctionsAPI
from ._async.process import AsyncProcess
from ._async.members import AsyncMembersAPI
from ._async.resources import AsyncSnapshotsAPI, AsyncTemplatesAPI, AsyncTokensAPI, AsyncWorkspacesAPI
from ._async.sandbox import AsyncSandbox
from ._async.schedules import AsyncSchedulesAPI
from ._async.volumes import AsyncVolumesAPI
from ._async.webhooks import AsyncWebhooksAPI
from ._retry import CreateRetryEvent
from ._sync.apps import AppsAPI
from ._sync.client import PandaStack, SandboxesAPI
from ._sync.commands import SandboxCommands
from ._sync.contexts import CodeContext
from ._sync.databases import DatabasesAPI
from ._sync.exec_stream import ExecStream
from ._sync.filesystem import SandboxFilesystem
from ._sync.functions import FunctionsAPI
from ._sync.process import Process
from ._sync.members import MembersAPI
from ._sync.resources import SnapshotsAPI, TemplatesAPI, TokensAPI, WorkspacesAPI
from ._sync.sandbox import Sandbox
from ._sync.schedules import SchedulesAPI
from ._sync.volumes import VolumesAPI
from ._sync.webhooks import WebhooksAPI
from ._version import __version__
from .app_models import App, AppInstance, AppInstanceMetrics, AppMetrics
from .context_models import Execution, Result
from .database_models import (
    Database,
    DatabaseBackups,
    DatabaseBaseBackup,
    DatabaseConnection,
    DatabaseDrill,
    DatabaseRows,
    DatabaseStats,
)
from .errors import (
    APIConnectionError,
    ArgumentTypeError,
    AuthError,
    BadRequestError,
    CapacityError,
    CommandFailed,
    ConflictError,
    ConnectionError,
    ExecInterrupted,
    FunctionDeployError,
    NotFoundError,
    PandaStackError,
    PandastackError,
    PermissionDeniedError,
    RateLimitError,
    RequestTimeout,
    SandboxTimeout,
    ServerError,
    TemplateBuildError,
)
from .exploring import BranchOutcome, Candidate, ExploreError, ExploreResult
from .function_models import FunctionInfo, FunctionMetrics, FunctionRun, FunctionVersion
from .account_models import (
    AuditEntry,
    AuditVerification,
    Member,
    MemberSession,
    OutdatedComponent,
    OutdatedList,
    OutdatedState,
    Token,
    WorkspaceInfo,
)
from .file_models import FileChange, FileContent, FileInfo, GrepMatch, WriteResult
from .models import (
    Checkpoints,
    ExecChunk,
    ExecResult,
    Lifecycle,
    Lineage,
    NetworkPolicy,
    OutputGap,
    Port,
    ProcessInfo,
    PromoteResult,
    RunResult,
    SandboxEvent,
    SandboxMetrics,
    Snapshot,
    SnapshotInfo,
    Template,
    Usage,
)
from .recipe import TemplateRecipe
from .schedule_models import NextRuns, Schedule, ScheduleRun, command_target, http_target, rebuild_target
from .template_models import TemplateBuild
from .volume_models import VolumeInfo
from .webhook_models import Webhook, WebhookDelivery, WebhookVerificationError, verify_webhook

#: The same as :class:`PandaStack`.
Client = PandaStack
#: The same as :class:`AsyncPandaStack`.
AsyncClient = AsyncPandaStack

__all__ = [
    "BranchOutcome",
    "Candidate",
    "ExploreError",
    "ExploreResult",
    "APIConnectionError",
    "AppsAPI",
    "AsyncAppsAPI",
    "App",
    "AppInstance",
    "AppInstanceMetrics",
    "AppMetrics",
    "ArgumentTypeError",
    "AsyncClient",
    "AsyncCodeContext",
    "AsyncDatabasesAPI",
    "AsyncExecStream",
    "AsyncFunctionsAPI",
    "AsyncMembersAPI",
    "AsyncPandaStack",
    "AsyncProcess",
    "AsyncSandbox",
    "AsyncSandboxCommands",
    "AsyncSandboxFilesystem",
    "AsyncSandboxesAPI",
    "AsyncSchedulesAPI",
    "AsyncSnapshotsAPI",
    "AsyncTemplatesAPI",
    "AsyncTokensAPI",
    "AsyncVolumesAPI",
    "AsyncWebhooksAPI",
    "AsyncWorkspacesAPI",
    "AuditEntry",
    "AuditVerification",
    "AuthError",
    "BadRequestError",
    "CapacityError",
    "Checkpoints",
    "Client",
    "CodeContext",
    "CommandFailed",
    "ConflictError",
    "ConnectionError",
    "CreateRetryEvent",
    "Database",
    "DatabaseConnection",
    "DatabaseRows",
    "DatabaseBackups",
    "DatabaseBaseBackup",
    "DatabaseDrill",
    "DatabaseStats",
    "DatabasesAPI",
    "ExecChunk",
    "ExecInterrupted",
    "ExecResult",
    "ExecStream",
    "Execution",
    "FileChange",
    "FileContent",
    "FileInfo",
    "FunctionDeployError",
    "FunctionInfo",
    "FunctionMetrics",
    "FunctionRun",
    "FunctionVersion",
    "FunctionsAPI",
    "GrepMatch",
    "Lifecycle",
    "Lineage",
    "Member",
    "MemberSession",
    "MembersAPI",
    "NetworkPolicy",
    "NextRuns",
    "NotFoundError",
    "OutdatedComponent",
    "OutdatedList",
    "OutdatedState",
    "OutputGap",
    "PandaStack",
    "PandaStackError",
    "PandastackError",
    "PermissionDeniedError",
    "Port",
    "Process",
    "ProcessInfo",
    "PromoteResult",
    "RateLimitError",
    "RequestTimeout",
    "Result",
    "RunResult",
    "Sandbox",
    "SandboxCommands",
    "SandboxEvent",
    "SandboxFilesystem",
    "SandboxMetrics",
    "SandboxTimeout",
    "SandboxesAPI",
    "Schedule",
    "ScheduleRun",
    "SchedulesAPI",
    "ServerError",
    "Snapshot",
    "SnapshotInfo",
    "SnapshotsAPI",
    "Template",
    "TemplateBuild",
    "TemplateBuildError",
    "TemplateRecipe",
    "TemplatesAPI",
    "Token",
    "TokensAPI",
    "Usage",
    "VolumeInfo",
    "VolumesAPI",
    "Webhook",
    "WebhookDelivery",
    "WebhookVerificationError",
    "WebhooksAPI",
    "WorkspaceInfo",
    "WorkspacesAPI",
    "WriteResult",
    "__version__",
    "command_target",
    "http_target",
    "rebuild_target",
    "verify_webhook",
]
