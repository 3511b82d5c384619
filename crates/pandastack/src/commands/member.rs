//! `pandastack member`: members of the workspace and their sessions.

use std::process::ExitCode;

use anyhow::Result;
use jiff::Timestamp;
use pandastack_client::Client;
use pandastack_types::api::{AddMember, Member, PatchMember, Role};

use super::each::each;
use super::runtime::with_client;
use crate::failure::Failure;
use crate::output::{Output, age};

/// Subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List members
    #[command(visible_alias = "ls")]
    List,
    /// Add a member to the workspace
    Add {
        /// Email address, as verified by the login provider
        #[arg(required_unless_present = "subject")]
        email: Option<String>,
        /// User ID at the login provider (claim `sub`)
        #[arg(long)]
        subject: Option<String>,
        /// Role: `viewer`, `developer` or `owner`
        #[arg(long, default_value = "developer")]
        role: Role,
    },
    /// Change the role of a member; applies to open sessions, too
    Role {
        /// Member ID or email address
        member: String,
        /// New role: `viewer`, `developer` or `owner`
        role: Role,
    },
    /// Remove members and end their sessions
    #[command(visible_alias = "rm")]
    Remove {
        /// Member IDs or email addresses
        #[arg(required = true)]
        members: Vec<String>,
    },
    /// List sessions of members
    Sessions,
    /// Revoke sessions
    Revoke {
        /// Session IDs, as shown by `pandastack member sessions`
        #[arg(required = true)]
        sessions: Vec<String>,
    },
}

impl Command {
    /// Runs the command.
    pub fn run(self, output: Output) -> Result<ExitCode> {
        with_client(|client| async move {
            match self {
                Command::List => list(&client, output).await?,
                Command::Add { email, subject, role } => {
                    let member = client.add_member(&AddMember { email, subject, role }).await?;
                    output.value(&member, |member| member.id.to_string())?;
                }
                Command::Role { member, role } => {
                    let id = find(&client, &member).await?;
                    let member = client.change_member(&id, &PatchMember { role }).await?;
                    output.value(&member, |member| format!("{} is now {}", name(member), member.role))?;
                }
                Command::Remove { members } => {
                    let remove = async |member: &str| {
                        client.remove_member(&find(&client, member).await?).await?;
                        Ok(member.to_owned())
                    };
                    return each(&members, output, remove).await;
                }
                Command::Sessions => sessions(&client, output).await?,
                Command::Revoke { sessions } => {
                    let revoke = async |id: &str| {
                        client.revoke_session(id).await?;
                        Ok(id.to_owned())
                    };
                    return each(&sessions, output, revoke).await;
                }
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}

async fn list(client: &Client, output: Output) -> Result<()> {
    let members = client.list_members().await?;
    let now = Timestamp::now();
    output.table(&members, ["ID", "MEMBER", "NAME", "ROLE", "FROM", "LAST SIGN-IN"], |member| {
        let role = if member.operator { "operator" } else { member.role.as_str() };
        [
            member.id.to_string(),
            name(member),
            member.name.clone().unwrap_or_default(),
            role.to_owned(),
            if member.from_groups { "groups" } else { "owner" }.to_owned(),
            member.last_sign_in_at.map_or_else(|| "never".to_owned(), |at| age(at, now)),
        ]
    })
}

async fn sessions(client: &Client, output: Output) -> Result<()> {
    let sessions = client.list_sessions().await?;
    let now = Timestamp::now();
    output.table(&sessions, ["ID", "MEMBER", "CLIENT", "ROLE", "AGE", "LAST USED", "EXPIRES"], |session| {
        [
            session.id.clone(),
            session.label.clone(),
            session.client.clone(),
            session.role.to_string(),
            age(session.created_at, now),
            session.last_used_at.map_or_else(|| "never".to_owned(), |at| age(at, now)),
            session.expires_at.to_string(),
        ]
    })
}

fn name(member: &Member) -> String {
    member.email.clone().or_else(|| member.subject.clone()).unwrap_or_default()
}

/// The ID of a member that is given by ID or address.
async fn find(client: &Client, given: &str) -> Result<String> {
    if !given.contains('@') {
        return Ok(given.to_owned());
    }
    let members = client.list_members().await?;
    let is_meant =
        |member: &&Member| member.email.as_deref().is_some_and(|email| email.eq_ignore_ascii_case(given));
    let found: Vec<&Member> = members.iter().filter(is_meant).collect();
    match found.as_slice() {
        [member] => Ok(member.id.to_string()),
        [] => Err(Failure::new(format!("member `{given}` not found"))
            .hint("run `pandastack member list` to see all members")
            .into()),
        _ => {
            let failure = Failure::new(format!("several members have the address `{given}`"));
            Err(failure.hint("use the ID from `pandastack member list`").into())
        }
    }
}
