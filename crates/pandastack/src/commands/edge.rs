//! `pandastack edge`: runs an edge proxy for sandboxes and apps.
//!
//! For fleets, where it runs on the hosts that face the internet, and for installations where a
//! restart of control must not interrupt traffic. On a single machine, `control` proxies this
//! traffic on its own address.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use axum::Router;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use pandastack_edge::{AccessLog, ControlRoutes, Edge, EdgeCredentials, Server};
use pandastack_metrics::Page;
use pandastack_types::HostId;
use pandastack_types::host_identity::HostRole;
use tokio::net::TcpListener;

use super::control::LinkArgs;
use super::join::{JoinArgs, Joined};
use crate::settings::{AgentArgs, CommonArgs, ControlArgs, Settings};
use crate::supervise::service_user::{Needs, User};
use crate::supervise::{secret, stop_requested};
use crate::tls::TlsArgs;
use crate::trace;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: CommonArgs,
    /// Address and port to serve on
    #[arg(long, env = "PANDASTACK_EDGE_LISTEN", default_value = "0.0.0.0:80", value_name = "ADDRESS")]
    edge_listen: SocketAddr,
    /// Control server: `unix:/path` or `https://address:port`; separate several with commas
    /// [default: the control socket on this machine]
    #[arg(long, env = "PANDASTACK_CONTROL", value_name = "ADDRESS")]
    control: Option<String>,
    /// ID of this edge; each edge that joins needs its own
    #[arg(long, env = "PANDASTACK_EDGE_NAME", default_value = "edge", value_name = "NAME")]
    name: HostId,
    /// Log requests to this file
    #[arg(long, env = "PANDASTACK_ACCESS_LOG", value_name = "FILE")]
    access_log: Option<PathBuf>,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    join: JoinArgs,
    #[command(flatten)]
    link: LinkArgs,
}

/// Runs the command.
pub fn run(args: Args) -> Result<ExitCode> {
    // Before the first thread: threads inherit it.
    rustix::thread::set_no_new_privs(true).context("cannot give up the right to gain privileges")?;
    let settings = Settings::resolve(&args.common, &ControlArgs::default(), &AgentArgs::default())?;
    trace::json_requested()?;
    let secret_file = args.link.secret_file(&settings);
    // A directory of its own, because the edge writes there as an unprivileged user.
    let own_dir = settings.data_dir.join("edge");
    let joins = args.join.applies(&own_dir);
    let key = if joins { None } else { Some(secret::read(&secret_file)?) };
    let given_control = args.control.clone();
    let control = args.control.unwrap_or_else(|| format!("unix:{}", settings.control_socket().display()));
    let tls = args.tls.open(&settings.data_dir)?;
    let logs = args.access_log.clone().into_iter().chain(args.link.log_file.clone()).collect();
    // Those of a control server that stayed root are for root only.
    let sockets = control.split(',').filter_map(|address| address.trim().strip_prefix("unix:"));
    let needs = Needs {
        listen: vec![args.edge_listen],
        logs,
        read: args.tls.files().chain(sockets.map(PathBuf::from)).collect(),
        directories: joins.then(|| own_dir.clone()).into_iter().collect(),
        secret: key.is_some().then(|| secret_file.clone()),
        ..Needs::default()
    };
    let user = User::prepare(&settings, &needs)?;
    if let User::Service(service) = &user {
        service.enter(&needs)?;
    }
    trace::init(args.link.log_file.as_deref(), trace::FILTER_SERVER, settings.export("edge", false))?;
    trace::log_panics();
    user.log("edge");
    let runtime = tokio::runtime::Runtime::new().context("cannot start the async runtime")?;
    runtime.block_on(async {
        let stop = stop_requested(args.link.supervised)?;
        let joined = match joins {
            true => args.join.joined(&own_dir, given_control.as_deref(), HostRole::Edge, &args.name).await?,
            false => None,
        };
        let credentials = match (&joined, &key) {
            (Some(joined), _) => EdgeCredentials::Certificate(joined.tls.clone()),
            (None, Some(key)) => EdgeCredentials::Secret(key.clone()),
            (None, None) => anyhow::bail!("this edge has neither a certificate nor the join secret"),
        };
        let routes =
            ControlRoutes::new(&control, args.name, credentials).context("invalid --control address")?;
        let log = AccessLog::open(args.access_log.as_deref()).context("cannot open the access log")?;
        let listener = TcpListener::bind(args.edge_listen).await;
        let listener = listener.with_context(|| format!("cannot listen on {}", args.edge_listen))?;
        tracing::info!(address = %args.edge_listen, control, "edge ready");
        let edge = Edge::new(Arc::clone(&routes) as _, log);
        let server = Server::new(Arc::clone(&edge), own_routes(Arc::clone(&edge))).with_tls(tls);
        let served =
            async { tokio::join!(server.serve(listener, stop.clone()), routes.follow(&edge, stop.clone())) };
        match (joined, &key) {
            (None, Some(key)) => {
                secret::following(&secret_file, key, served).await;
            }
            (Some(Joined { tls, file }), _) => {
                let control = pandastack_fleet::Control::parse(&control);
                tokio::join!(served, pandastack_fleet::keep_current(&tls, &control, &file, &stop));
            }
            (None, None) => {
                served.await;
            }
        }
        edge.shut_down().await;
        anyhow::Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Routes of the edge itself.
fn own_routes(edge: Arc<Edge>) -> Router {
    let unknown = || async {
        let text =
            r#"{"error":"unknown host; an edge serves <port>-<sandbox id>.<domain>","code":"not_found"}"#;
        (StatusCode::NOT_FOUND, [("content-type", "application/json")], text)
    };
    Router::new()
        .route("/healthz", get(|| async { r#"{"status":"ok"}"# }))
        .route("/metrics", get(move || async move { metrics(&edge) }))
        .fallback(unknown)
}

fn metrics(edge: &Edge) -> impl IntoResponse + use<> {
    let mut page = Page::default();
    edge.add_metrics(&mut page);
    ([(CONTENT_TYPE, pandastack_metrics::CONTENT_TYPE)], page.into_text())
}
