//! `pandastack token`: API keys.

use std::process::ExitCode;

use anyhow::{Result, anyhow};
use jiff::{SignedDuration, Timestamp};
use pandastack_types::api::{CreateToken, Role, RotateToken, Scope};
use pandastack_types::api_key;

use super::each::each;
use super::runtime::with_client;
use crate::output::{Output, age};

/// Subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Create an API key and print it; it is shown only once
    Create(Create),
    /// List API keys, without their secrets
    #[command(visible_alias = "ls")]
    List {
        /// Workspace of the keys; needs an operator key [default: the workspace of the key in use]
        #[arg(long, value_name = "NAME")]
        workspace: Option<String>,
    },
    /// Replace the secret of an API key and print the new one; it is shown only once
    Rotate {
        /// Key prefix, as shown by `pandastack token list`
        prefix: String,
        /// How long the old secret keeps working, such as `1h` or `7d`; `0s` to revoke it immediately
        #[arg(long = "keep-old", alias = "overlap", value_name = "DURATION")]
        #[arg(default_value = "24h", value_parser = duration)]
        overlap: SignedDuration,
        /// Workspace of the key; needs an operator key [default: the workspace of the key in use]
        #[arg(long, value_name = "NAME")]
        workspace: Option<String>,
    },
    /// Revoke API keys
    #[command(name = "delete", visible_alias = "rm")]
    Rm {
        /// Key prefixes, as shown by `pandastack token list`
        #[arg(required = true)]
        prefixes: Vec<String>,
        /// Workspace of the keys; needs an operator key [default: the workspace of the key in use]
        #[arg(long, value_name = "NAME")]
        workspace: Option<String>,
    },
}

/// A new key.
#[derive(Debug, clap::Args)]
pub struct Create {
    /// Human-readable label
    #[arg(long)]
    label: Option<String>,
    /// Permissions of the key: `viewer`, `developer` or `owner` [default: developer]
    #[arg(long)]
    role: Option<Role>,
    /// The earlier name of --role: `read`, `sandboxes` or `admin`
    #[arg(long, hide = true, conflicts_with = "role")]
    scope: Option<Scope>,
    /// Also allow the key to manage workspaces and hosts; needs an operator key
    #[arg(long, conflicts_with_all = ["role", "scope", "workspace"])]
    operator: bool,
    /// When the key expires: a duration such as `12h` or `30d`, or an RFC 3339 time [default: never]
    #[arg(long, value_name = "TIME", value_parser = expiry)]
    expires: Option<Timestamp>,
    /// Days until the key expires [default: never]
    #[arg(long, value_name = "DAYS", hide = true, conflicts_with = "expires")]
    expires_in: Option<u32>,
    /// Network that the key may be used from, such as 10.1.0.0/16; can be repeated [default: any]
    #[arg(long, value_name = "CIDR")]
    allow_from: Vec<String>,
    /// Form of the printed key: `e2b` for clients of E2B that refuse keys of another form
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// Workspace of the key; needs an operator key [default: the workspace of the key in use]
    #[arg(long, value_name = "NAME")]
    workspace: Option<String>,
}

/// How a new key is printed.
#[derive(Debug, Clone, Copy, Default, clap::ValueEnum)]
enum Format {
    #[default]
    Pandastack,
    E2b,
}

impl Format {
    fn apply(self, key: String) -> Result<String> {
        match self {
            Format::Pandastack => Ok(key),
            Format::E2b => {
                api_key::for_e2b(&key).ok_or_else(|| anyhow!("the server created a key of an unknown form"))
            }
        }
    }
}

/// A duration with one unit: `90s`, `15m`, `12h` or `30d`.
pub fn duration(text: &str) -> Result<SignedDuration, String> {
    let seconds = match text.char_indices().last() {
        Some((at, 's')) => Some((at, 1)),
        Some((at, 'm')) => Some((at, 60)),
        Some((at, 'h')) => Some((at, 3600)),
        Some((at, 'd')) => Some((at, 24 * 3600)),
        _ => None,
    };
    seconds
        .and_then(|(at, unit)| text[..at].parse::<u32>().ok().map(|count| i64::from(count) * unit))
        .map(SignedDuration::from_secs)
        .ok_or_else(|| "expected a number and a unit, such as `12h` or `30d`".to_owned())
}

fn expiry(text: &str) -> Result<Timestamp, String> {
    match duration(text) {
        Ok(duration) => Timestamp::now().checked_add(duration).map_err(|error| error.to_string()),
        Err(_) => text.parse().map_err(|_| {
            "expected a duration such as `30d`, or a time such as `2030-01-31T00:00:00Z`".to_owned()
        }),
    }
}

impl Command {
    /// Runs the command.
    pub fn run(self, output: Output) -> Result<ExitCode> {
        with_client(|client| async move {
            match self {
                Command::Create(create) => {
                    let workspace = create.workspace.clone();
                    let request = CreateToken {
                        label: create.label,
                        role: create.role,
                        scope: create.scope,
                        operator: create.operator,
                        expires_in_days: create.expires_in,
                        expires_at: create.expires,
                        allow_from: create.allow_from,
                    };
                    let mut created = client.create_token(workspace.as_deref(), &request).await?;
                    created.token = create.format.apply(created.token)?;
                    output.value(&created, |created| created.token.clone())?;
                    output.note("save this key now: it is not shown again");
                }
                Command::Rotate { prefix, overlap, workspace } => {
                    let seconds = u64::try_from(overlap.as_secs());
                    let overlap_seconds =
                        Some(seconds.map_err(|_| anyhow!("--keep-old must not be negative"))?);
                    let request = RotateToken { overlap_seconds };
                    let created = client.rotate_token(workspace.as_deref(), &prefix, &request).await?;
                    output.value(&created, |created| created.token.clone())?;
                    if !output.is_json() {
                        let until = created.replaced_until.map(|at| at.to_string()).unwrap_or_default();
                        eprintln!("save this key now: it is not shown again; `{prefix}` works until {until}");
                    }
                }
                Command::List { workspace } => {
                    let tokens = client.list_tokens(workspace.as_deref()).await?;
                    let now = Timestamp::now();
                    let columns = ["PREFIX", "LABEL", "ROLE", "AGE", "LAST USED", "EXPIRES", "ALLOWED FROM"];
                    output.table(&tokens, columns, |token| {
                        let expires =
                            token.expires_at.map_or_else(|| "never".to_owned(), |at| at.to_string());
                        let used = token.last_used_at.map_or_else(|| "never".to_owned(), |at| age(at, now));
                        let role = if token.operator { "operator" } else { token.role.as_str() };
                        let from = match token.allow_from.is_empty() {
                            true => "everywhere".to_owned(),
                            false => token.allow_from.join(","),
                        };
                        [
                            token.prefix.clone(),
                            token.label.clone(),
                            role.to_owned(),
                            age(token.created_at, now),
                            used,
                            expires,
                            from,
                        ]
                    })?;
                }
                Command::Rm { prefixes, workspace } => {
                    let delete = async |prefix: &str| {
                        client.delete_token(workspace.as_deref(), prefix).await?;
                        Ok(prefix.to_owned())
                    };
                    return each(&prefixes, output, delete).await;
                }
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_one_unit() {
        for (text, seconds) in [("0s", 0), ("90s", 90), ("15m", 900), ("12h", 43_200), ("30d", 2_592_000)] {
            assert_eq!(duration(text), Ok(SignedDuration::from_secs(seconds)), "{text}");
        }
        for bad in ["", "s", "12", "-1h", "1.5h", "1w", "12 h"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
        assert!(expiry("2030-01-31T00:00:00Z").is_ok() && expiry("tomorrow").is_err());
    }
}
