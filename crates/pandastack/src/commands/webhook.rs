//! `pandastack webhook`: URLs that receive events of the workspace.

use std::process::ExitCode;

use anyhow::Result;
use jiff::Timestamp;
use pandastack_client::Client;
use pandastack_types::WebhookId;
use pandastack_types::api::{
    CreateWebhook, DeliveryState, PatchWebhook, Webhook, WebhookDelivery, WebhookFilter,
};

use super::each::{each, show_each};
use super::runtime::with_client;
use crate::output::{Output, age, fields};

/// Subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Create a webhook and print its secret; the secret is shown only once
    Create {
        /// URL that receives a POST request for every event
        url: String,
        /// Events to send, such as `sandbox.failed` or `app.*`, separated by commas [default: all]
        #[arg(long, value_name = "EVENTS", value_delimiter = ',')]
        events: Vec<WebhookFilter>,
        /// Human-readable description
        #[arg(long)]
        description: Option<String>,
    },
    /// List webhooks
    #[command(visible_alias = "ls")]
    List,
    /// Show webhooks
    Get {
        /// Webhook IDs
        #[arg(required = true, value_name = "WEBHOOK")]
        webhooks: Vec<WebhookId>,
    },
    /// Change a webhook; omitted settings are kept
    Update(Update),
    /// Replace the secret of a webhook; deliveries are also signed with the old one for 24 hours
    RotateSecret {
        /// Webhook ID
        webhook: WebhookId,
    },
    /// Send a test message to a webhook
    Test {
        /// Webhook ID
        webhook: WebhookId,
    },
    /// List deliveries to a webhook, newest first
    Deliveries {
        /// Webhook ID
        webhook: WebhookId,
        /// Number of deliveries to list
        #[arg(long, short = 'n', value_name = "COUNT", default_value_t = 20)]
        limit: u32,
    },
    /// Send a delivery again
    Redeliver {
        /// Webhook ID
        webhook: WebhookId,
        /// Delivery ID, as shown by `pandastack webhook deliveries`
        delivery: i64,
    },
    /// Delete webhooks and their deliveries
    #[command(name = "delete", visible_alias = "rm")]
    Rm {
        /// Webhook IDs
        #[arg(required = true, value_name = "WEBHOOK")]
        webhooks: Vec<WebhookId>,
    },
}

/// Changes of a webhook.
#[derive(Debug, clap::Args)]
pub struct Update {
    /// Webhook ID
    webhook: WebhookId,
    /// New URL
    #[arg(long)]
    url: Option<String>,
    /// Events to send, separated by commas
    #[arg(long, value_name = "EVENTS", value_delimiter = ',')]
    events: Option<Vec<WebhookFilter>>,
    /// Send all events
    #[arg(long, conflicts_with = "events")]
    all_events: bool,
    /// New description
    #[arg(long)]
    description: Option<String>,
    /// Send events again
    #[arg(long, conflicts_with = "disable")]
    enable: bool,
    /// Stop sending events; events that happen meanwhile are not sent later
    #[arg(long)]
    disable: bool,
}

impl Update {
    fn patch(self) -> PatchWebhook {
        let events = if self.all_events { Some(Vec::new()) } else { self.events };
        let enabled = (self.enable || self.disable).then_some(self.enable);
        PatchWebhook { url: self.url, events, description: self.description, enabled }
    }
}

impl Command {
    /// Runs the command.
    pub fn run(self, output: Output) -> Result<ExitCode> {
        with_client(|client| async move { self.dispatch(&client, output).await })
    }

    async fn dispatch(self, client: &Client, output: Output) -> Result<ExitCode> {
        match self {
            Command::Create { url, events, description } => {
                let created = client.create_webhook(&CreateWebhook { url, events, description }).await?;
                output.value(&created, details)?;
                output.note("save the secret now: it is not shown again");
            }
            Command::List => list(output, &client.list_webhooks().await?)?,
            Command::Get { webhooks } => {
                let fetch = async |id: &str| Ok(client.get_webhook(&id.parse()?).await?);
                return show_each(&texts(webhooks), output, fetch, details).await;
            }
            Command::Update(update) => {
                let id = update.webhook.clone();
                output.value(&client.patch_webhook(&id, &update.patch()).await?, details)?;
            }
            Command::RotateSecret { webhook } => {
                output.value(&client.rotate_webhook_secret(&webhook).await?, details)?;
                output.note("save the secret now: it is not shown again");
            }
            Command::Test { webhook } => {
                let sent = client.test_webhook(&webhook).await?;
                output.value(&sent, |sent| sent.id.to_string())?;
                output.note(&format!("to see the result, run `pandastack webhook deliveries {webhook}`"));
            }
            Command::Deliveries { webhook, limit } => {
                deliveries(output, &client.list_webhook_deliveries(&webhook, limit).await?)?;
            }
            Command::Redeliver { webhook, delivery } => {
                let sent = client.redeliver_webhook(&webhook, delivery).await?;
                output.value(&sent, |sent| sent.id.to_string())?;
            }
            Command::Rm { webhooks } => {
                let delete = async |id: &str| {
                    client.delete_webhook(&id.parse()?).await?;
                    Ok(id.to_owned())
                };
                return each(&texts(webhooks), output, delete).await;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn texts(ids: Vec<WebhookId>) -> Vec<String> {
    ids.iter().map(WebhookId::to_string).collect()
}

fn list(output: Output, webhooks: &[Webhook]) -> Result<()> {
    let now = Timestamp::now();
    output.table(webhooks, ["ID", "URL", "EVENTS", "STATE", "AGE"], |webhook| {
        [
            webhook.id.to_string(),
            webhook.url.clone(),
            events(webhook),
            state(webhook).to_owned(),
            age(webhook.created_at, now),
        ]
    })
}

fn details(webhook: &Webhook) -> String {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let mut rows = vec![
        ("id", webhook.id.to_string()),
        ("url", webhook.url.clone()),
        ("events", events(webhook)),
        ("description", or_dash(webhook.description.clone())),
        ("state", state(webhook).to_owned()),
    ];
    if let Some(reason) = &webhook.disabled_reason {
        rows.push(("reason", reason.clone()));
    }
    if let Some(since) = webhook.failing_since {
        rows.push(("failing since", since.to_string()));
    }
    if let Some(secret) = &webhook.secret {
        rows.push(("secret", secret.clone()));
    }
    fields(&rows)
}

fn events(webhook: &Webhook) -> String {
    let filters: Vec<&str> = webhook.events.iter().map(WebhookFilter::as_str).collect();
    if filters.is_empty() { "all".to_owned() } else { filters.join(",") }
}

fn state(webhook: &Webhook) -> &'static str {
    match (webhook.enabled, webhook.failing_since) {
        (false, _) => "disabled",
        (true, Some(_)) => "failing",
        (true, None) => "enabled",
    }
}

fn deliveries(output: Output, deliveries: &[WebhookDelivery]) -> Result<()> {
    let now = Timestamp::now();
    let columns = ["ID", "TYPE", "STATE", "ATTEMPTS", "AGE", "NEXT ATTEMPT", "RESULT"];
    output.table(deliveries, columns, |delivery| {
        let next = match (delivery.state, delivery.next_attempt_at) {
            (DeliveryState::Pending, Some(at)) => at.to_string(),
            _ => "-".to_owned(),
        };
        [
            delivery.id.to_string(),
            delivery.kind.clone(),
            delivery.state.as_str().to_owned(),
            delivery.attempts.to_string(),
            age(delivery.created_at, now),
            next,
            delivery.result.clone().unwrap_or_else(|| "-".to_owned()),
        ]
    })
}
