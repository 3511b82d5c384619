//! Members of the workspace, their sessions, and sign-in on a device.

use pandastack_types::api::{
    AddMember, DeviceLogin, FinishLogin, LoginProgress, Member, MemberSession, PatchMember,
};
use reqwest::Method;

use crate::client::{Client, List, READ_SECONDS};
use crate::error::Result;

impl Client {
    /// Starts to sign in on this device. Needs no API key.
    pub async fn start_login(&self) -> Result<DeviceLogin> {
        self.call(Method::POST, &["login", "device"], READ_SECONDS).receive().await
    }

    /// Polls whether the user has confirmed. Needs no API key.
    pub async fn finish_login(&self, request: &FinishLogin) -> Result<LoginProgress> {
        self.call(Method::POST, &["login", "token"], READ_SECONDS).json(request).receive().await
    }

    /// Revokes the session that this client uses.
    pub async fn end_login(&self) -> Result<()> {
        self.call(Method::DELETE, &["login", "session"], READ_SECONDS).finish().await
    }

    /// Members of the workspace, oldest first. This and the following calls need an owner key.
    pub async fn list_members(&self) -> Result<Vec<Member>> {
        let list: List<Member> = self.call(Method::GET, &["members"], READ_SECONDS).receive().await?;
        Ok(list.into_vec())
    }

    /// Adds a person to the workspace.
    pub async fn add_member(&self, request: &AddMember) -> Result<Member> {
        self.call(Method::POST, &["members"], READ_SECONDS).json(request).receive().await
    }

    /// Changes the role of a member.
    pub async fn change_member(&self, id: &str, patch: &PatchMember) -> Result<Member> {
        self.call(Method::PATCH, &["members", id], READ_SECONDS).json(patch).receive().await
    }

    /// Removes a member; their sessions end.
    pub async fn remove_member(&self, id: &str) -> Result<()> {
        self.call(Method::DELETE, &["members", id], READ_SECONDS).finish().await
    }

    /// Sessions of members, newest first.
    pub async fn list_sessions(&self) -> Result<Vec<MemberSession>> {
        let path = ["members", "sessions"];
        let list: List<MemberSession> = self.call(Method::GET, &path, READ_SECONDS).receive().await?;
        Ok(list.into_vec())
    }

    /// Revokes a session.
    pub async fn revoke_session(&self, id: &str) -> Result<()> {
        self.call(Method::DELETE, &["members", "sessions", id], READ_SECONDS).finish().await
    }
}
