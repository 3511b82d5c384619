//! People: members of a workspace, and their sign-ins through the login provider.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Role;
use crate::{MemberId, WorkspaceId};

/// A person with a role in the workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Member {
    /// Member ID.
    pub id: MemberId,
    /// Email address, verified by the login provider once the person has signed in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    /// Name, as the login provider reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Subject: the login provider's identifier of the person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Role in the workspace.
    pub role: Role,
    /// Whether the role comes from the person's groups at the login provider. It cannot be changed here.
    #[serde(default)]
    pub from_groups: bool,
    /// Whether the person can also manage the installation.
    #[serde(default)]
    pub operator: bool,
    /// Time when the member was added.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Time of the last sign-in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_sign_in_at: Option<Timestamp>,
}

/// Request body of `POST /v1/members`. Set `email`, `subject` or both.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AddMember {
    /// Email address. It must be verified at the login provider when the person signs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub email: Option<String>,
    /// Subject: the login provider's identifier of the person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Role in the workspace. Default: `developer`.
    #[serde(default)]
    pub role: Role,
}

/// Request body of `PATCH /v1/members/{id}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PatchMember {
    /// New role. It applies to open sessions, too.
    pub role: Role,
}

/// A sign-in of a member that has not ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemberSession {
    /// Session ID. The audit log has it as `token_prefix`.
    pub id: String,
    /// The member.
    pub member: MemberId,
    /// Email address or name of the person.
    pub label: String,
    /// Browser or device.
    pub client: String,
    /// Role in the workspace.
    pub role: Role,
    /// Time of the sign-in.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// Time of the last request, accurate to a minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_used_at: Option<Timestamp>,
    /// Time when the session expires.
    #[schema(value_type = String, format = DateTime)]
    pub expires_at: Timestamp,
}

/// Response of `GET /v1/login`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LoginOptions {
    /// The login provider; absent if people sign in with API keys only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<LoginProvider>,
}

/// The login provider of the installation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LoginProvider {
    /// Name to show.
    pub name: String,
    /// URL at which a browser starts a sign-in to the web console.
    pub url: String,
}

/// Response of `POST /v1/login/device`: a device that waits for a person to confirm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeviceLogin {
    /// Code with which the device redeems the sign-in at `POST /v1/login/token`. Keep it secret.
    pub device_code: String,
    /// Code that the user confirms at `verification_uri`.
    pub user_code: String,
    /// URL at which the user confirms the code.
    pub verification_uri: String,
    /// The same address with the code in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verification_uri_complete: Option<String>,
    /// Seconds until the code expires.
    pub expires_in: u64,
    /// Seconds to wait between requests to `POST /v1/login/token`.
    pub interval: u64,
}

/// Request body of `POST /v1/login/token`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FinishLogin {
    /// Code from `POST /v1/login/device`.
    pub device_code: String,
    /// Workspace to sign in to. Default: the person's only one, or `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<WorkspaceId>,
    /// Name of the device, shown in the list of sessions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
}

/// Progress of a sign-in on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LoginStatus {
    /// The person has not confirmed yet: ask again after the interval.
    Pending,
    /// The same, and the interval must be 5 seconds longer from now on.
    SlowDown,
    /// The person has signed in.
    Complete,
}

/// Response of `POST /v1/login/token`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LoginProgress {
    /// Progress.
    pub status: LoginStatus,
    /// The session, once complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<LoginSession>,
}

/// A new session of a device.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LoginSession {
    /// Credential, used like an API key. It is not shown again.
    pub token: String,
    /// Workspace that it is for.
    pub workspace: WorkspaceId,
    /// Email address or name of the person.
    pub label: String,
    /// Role in the workspace.
    pub role: Role,
    /// Time when the session expires.
    #[schema(value_type = String, format = DateTime)]
    pub expires_at: Timestamp,
}

impl std::fmt::Debug for LoginSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoginSession")
            .field("workspace", &self.workspace)
            .field("label", &self.label)
            .finish_non_exhaustive()
    }
}
