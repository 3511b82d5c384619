//! The way of a request through the edge: find, check, hold, send, log.

mod streams;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, Uri, header};
use pandastack_types::SandboxId;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access::{self, Verdict};
use crate::access_log::{AccessLog, Entry};
use crate::body::{GuestBody, RequestBody, ResponseBody};
use crate::destination::Target;
use crate::error::EdgeError;
use crate::exchange::{Exchange, ExchangeError, Rest, Setback, stopped};
use crate::headers::{Client, is_ambiguous, to_guest, upgrade_of};
use crate::limits::{BODY_BYTES_MAX, HELD_WAIT, STOP_WAIT};
use crate::names::{Instances, Named, Names};
use crate::route::{Route, RouteSource};
use crate::site::{Site, Sites};
use crate::spread::choose;

/// An edge. Shared by all connections of all listeners.
pub struct Edge {
    source: Arc<dyn RouteSource>,
    sites: Sites,
    names: Names,
    log: Arc<AccessLog>,
    tasks: TaskTracker,
    stop: CancellationToken,
    /// Counts choices between machines of apps.
    turn: AtomicUsize,
}

impl Edge {
    /// An edge with its routes from `source`.
    pub fn new(source: Arc<dyn RouteSource>, log: AccessLog) -> Arc<Self> {
        let edge = Arc::new(Self {
            source,
            sites: Sites::default(),
            names: Names::default(),
            log: Arc::new(log),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            turn: AtomicUsize::new(0),
        });
        let (log, stop) = (Arc::clone(&edge.log), edge.stop.clone());
        edge.tasks.spawn(async move { log.keep_flushed(stop).await });
        edge
    }

    /// Counters in the Prometheus text format.
    pub fn metrics(&self) -> String {
        self.log.render()
    }

    /// The route of one sandbox, or of all, may have changed: it is read again before its next use.
    pub fn forget_route(&self, sandbox: Option<&SandboxId>) {
        self.sites.doubt(sandbox);
    }

    /// What stands behind some name may have changed: all are asked for again before their next use.
    pub fn forget_names(&self) {
        self.names.doubt();
    }

    /// What stands behind a host name now; `None` when it is no app's.
    pub async fn named(&self, name: &str) -> Result<Option<Named>, EdgeError> {
        let found = self.names.find(name, self.source.as_ref()).await;
        found.map_err(|error| EdgeError::Unavailable(error.to_string()))
    }

    /// Ends doors, tunnels and the log. Requests under way were waited for by the server.
    pub async fn shut_down(&self) {
        self.stop.cancel();
        self.tasks.close();
        if tokio::time::timeout(STOP_WAIT, self.tasks.wait()).await.is_err() {
            tracing::info!("stopped with tunnels open");
        }
        self.log.flush();
    }

    /// Serves one request to a sandbox.
    pub(crate) async fn serve(
        &self,
        target: &Target,
        parts: &mut Parts,
        body: RequestBody,
        client: &Client,
    ) -> Response<ResponseBody> {
        let asked = Asked::of(parts, client);
        let (mut site, mut outcome) = self.attempt(target, parts, body, client).await;
        if let Err(Setback { error: ExchangeError::Cut, rest: Rest::Repeatable }) = outcome
            && !self.stop.is_cancelled()
        {
            // Boxed: rare, and large beside what a usual request needs.
            (site, outcome) = Box::pin(self.attempt_again(target, parts, client)).await;
        }
        match outcome {
            Ok(response) => self.conclude(asked, target, site, response),
            Err(setback) => self.refuse(asked, &parts.headers, target, site, setback).await,
        }
    }

    /// Serves one request to an app: by one of its machines, or by another if it did not reach that one.
    pub(crate) async fn serve_app(
        &self,
        app: &Instances,
        parts: &mut Parts,
        mut body: RequestBody,
        client: &Client,
    ) -> Response<ResponseBody> {
        let target =
            |at: usize| Target { sandbox: app.sandboxes[at].clone(), port: app.port, by_header: false };
        if app.sandboxes.len() == 1 {
            return self.serve(&target(0), parts, body, client).await;
        }
        let asked = Asked::of(parts, client);
        let mut since = asked.began;
        let Some(mut at) = self.choose(app, &[]) else {
            let error = EdgeError::NotServing("the app has no running instance; deploy it again".to_owned());
            return error.answer(None, &parts.headers);
        };
        let (mut tried, mut is_repeated, mut cut_off) = (Vec::new(), false, None);
        loop {
            let (target, mut head) = (target(at), parts.clone());
            let (site, outcome) = self.attempt(&target, &mut head, body, client).await;
            let (error, rest) = match outcome {
                Err(Setback { error, rest }) => (error, rest),
                Ok(response) => return self.conclude(asked, &target, site, response),
            };
            if let (Some(site), Rest::Unsent(_) | Rest::Repeatable) = (&site, &rest) {
                site.note_missed();
            }
            tried.push(at);
            if let (ExchangeError::Cut, Rest::Repeatable) = (&error, &rest) {
                // What it waited for until now was an answer, not a machine.
                since = Instant::now();
                cut_off.get_or_insert((at, head));
            }
            // Each is waited for while it wakes: together no longer than one may be.
            let next = self.choose(app, &tried).filter(|_| since.elapsed() < HELD_WAIT);
            (at, body) = match (next, rest) {
                (Some(next), Rest::Unsent(body)) => (next, body),
                // Once: what breaks one machine could break the others, too.
                (Some(next), Rest::Repeatable) if !is_repeated => {
                    is_repeated = true;
                    (next, RequestBody::Empty)
                }
                (_, rest) => {
                    let failed = (target, site, Setback { error, rest });
                    return self.settle(asked, app, parts, client, failed, cut_off).await;
                }
            };
        }
    }

    /// The answer to a request that no further machine of an app gets: by the one that a stop cut off, if it has one, or why there
    /// is none.
    async fn settle(
        &self,
        asked: Asked,
        app: &Instances,
        parts: &Parts,
        client: &Client,
        failed: (Target, Option<Arc<Site>>, Setback),
        cut_off: Option<(usize, Parts)>,
    ) -> Response<ResponseBody> {
        let (target, site, setback) = failed;
        if let Some((at, mut head)) = cut_off
            && !self.stop.is_cancelled()
        {
            let again = Target { sandbox: app.sandboxes[at].clone(), ..target.clone() };
            // Boxed: rare, and large beside what a usual request needs.
            if let (site, Ok(response)) = Box::pin(self.attempt_again(&again, &mut head, client)).await {
                return self.conclude(asked, &again, site, response);
            }
        }
        self.refuse(asked, &parts.headers, &target, site, setback).await
    }

    /// The place of the machine that gets a request next; `None` if all were tried.
    fn choose(&self, app: &Instances, tried: &[usize]) -> Option<usize> {
        let loads: Vec<_> = app.sandboxes.iter().map(|id| self.sites.load(id)).collect();
        choose(&loads, app.always, self.turn.fetch_add(1, Ordering::Relaxed), tried)
    }

    /// Sends a request to one sandbox. Answers which one it was, if it is known.
    async fn attempt(
        &self,
        target: &Target,
        parts: &mut Parts,
        body: RequestBody,
        client: &Client,
    ) -> (Option<Arc<Site>>, Result<Response<ResponseBody>, Setback>) {
        match self.sites.find(&target.sandbox, self.source.as_ref()).await {
            Ok((site, route)) => {
                let outcome = self.pass(&site, &route, target, parts, body, client).await;
                (Some(site), outcome)
            }
            Err(error) => (None, Err(Setback::unsent(error, body))),
        }
    }

    /// The answer to a request that got none.
    async fn refuse(
        &self,
        asked: Asked,
        headers: &HeaderMap,
        target: &Target,
        site: Option<Arc<Site>>,
        setback: Setback,
    ) -> Response<ResponseBody> {
        let error = match setback.error {
            ExchangeError::Other(error) => error,
            ExchangeError::Cut => stopped(),
            // Boxed: rare, and large beside what a usual request needs.
            ExchangeError::Dial(error) => Box::pin(self.explain(error, site.as_deref(), target)).await,
        };
        let response = error.answer(Some(target), headers);
        self.conclude(asked, target, site, response)
    }

    /// The answer to a request, with its line in the log.
    fn conclude(
        &self,
        asked: Asked,
        target: &Target,
        site: Option<Arc<Site>>,
        mut response: Response<ResponseBody>,
    ) -> Response<ResponseBody> {
        let Some(site) = site else { return response };
        let entry = asked.entry(Arc::clone(&self.log), site, target.port, response.status().as_u16());
        if let ResponseBody::Guest(body) = response.body_mut() {
            body.log_at_end(entry);
        }
        response
    }

    async fn pass(
        &self,
        site: &Site,
        route: &Route,
        target: &Target,
        parts: &mut Parts,
        body: RequestBody,
        client: &Client,
    ) -> Result<Response<ResponseBody>, Setback> {
        check_head(parts)?;
        let now = || jiff::Timestamp::now().as_second();
        match access::check(parts, route, target.port, client.secure, now)? {
            Verdict::Pass => {}
            Verdict::Redirect(response) => return Ok(*response),
        }
        let upgrade = upgrade_of(parts);
        to_guest(parts);
        let ticket = match site.enter(route, &self.tasks, &self.stop).await {
            Ok(ticket) => ticket,
            Err(error) => return Err(Setback::unsent(error, body)),
        };
        let exchange = Exchange { ticket, port: target.port, client };
        let answer = match upgrade {
            Some(protocol) => {
                let on_upgrade = hyper::upgrade::on(Request::from_parts(parts.clone(), ()));
                // Boxed: rare, and large beside what a usual request needs.
                Box::pin(exchange.upgrade(parts, protocol, on_upgrade, &self.tasks)).await
            }
            None => exchange.send(parts, body).await,
        };
        answer.map(of_guest)
    }

    /// Sends a request again that a stop of its sandbox cut off, once that is awake: no transition of ours fails one that can be
    /// repeated. Its head is ready for the guest, and who sent it was let in.
    async fn attempt_again(
        &self,
        target: &Target,
        parts: &mut Parts,
        client: &Client,
    ) -> (Option<Arc<Site>>, Result<Response<ResponseBody>, Setback>) {
        let (site, route) = match self.sites.find(&target.sandbox, self.source.as_ref()).await {
            Ok(found) => found,
            Err(error) => return (None, Err(error.into())),
        };
        let answer = match site.enter(&route, &self.tasks, &self.stop).await {
            Ok(ticket) => {
                Exchange { ticket, port: target.port, client }.send(parts, RequestBody::Empty).await
            }
            Err(error) => Err(error.into()),
        };
        (Some(site), answer.map(of_guest))
    }
}

/// What is kept of a request for the log.
struct Asked {
    began: Instant,
    client: Arc<str>,
    method: Method,
    uri: Uri,
}

impl Asked {
    fn of(parts: &Parts, client: &Client) -> Self {
        Self {
            began: Instant::now(),
            client: client.text(),
            method: parts.method.clone(),
            uri: parts.uri.clone(),
        }
    }

    fn entry(self, log: Arc<AccessLog>, site: Arc<Site>, port: u16, status: u16) -> Entry {
        let Self { began, client, method, uri } = self;
        Entry { log, site, port, client, method, uri, status, bytes: 0, began }
    }
}

fn of_guest(response: Response<GuestBody>) -> Response<ResponseBody> {
    response.map(|body| ResponseBody::Guest(Box::new(body)))
}

fn check_head(parts: &Parts) -> Result<(), EdgeError> {
    if parts.method == Method::CONNECT {
        return Err(EdgeError::Malformed("previews do not support CONNECT".to_owned()));
    }
    if is_ambiguous(&parts.headers) {
        return Err(EdgeError::Malformed(
            "the request has more than one Content-Length or Host header; send each once".to_owned(),
        ));
    }
    let length = parts.headers.get(header::CONTENT_LENGTH);
    let length = length.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > BODY_BYTES_MAX) {
        return Err(EdgeError::TooLarge);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::time::Duration;

    use async_trait::async_trait;
    use pandastack_types::preview::Visibility;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::door::Door;
    use crate::limits::REQUESTS_PER_SANDBOX_MAX;
    use crate::route::{Place, RouteUnavailable};

    const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    /// Everything here is on loopback; what takes this long hangs.
    const PATIENCE: Duration = Duration::from_secs(20);

    struct Loopback;

    #[async_trait]
    impl RouteSource for Loopback {
        async fn find(&self, _: &SandboxId) -> Result<Option<Route>, RouteUnavailable> {
            Ok(Some(Route { to: Place::Fixed(LOOPBACK), visibility: Visibility::Unlisted, key: None }))
        }
    }

    /// A program in a sandbox, and an edge in front of it.
    struct World {
        edge: Arc<Edge>,
        target: Target,
        program: TcpListener,
    }

    impl World {
        async fn start() -> Self {
            let program = TcpListener::bind((LOOPBACK, 0)).await.unwrap();
            let port = program.local_addr().unwrap().port();
            let target = Target { sandbox: SandboxId::random(), port, by_header: false };
            Self { edge: Edge::new(Arc::new(Loopback), AccessLog::open(None).unwrap()), target, program }
        }

        /// Asks, while the program does its part.
        async fn ask(
            &self,
            head: http::request::Builder,
            program: impl Future<Output = TcpStream>,
        ) -> Response<ResponseBody> {
            let request = head.uri("/").header("host", "localhost").body(()).unwrap();
            let (mut parts, ()) = request.into_parts();
            let client = Client::new(LOOPBACK, 80, false);
            let asking = self.edge.serve(&self.target, &mut parts, RequestBody::Empty, &client);
            let both = async { tokio::join!(asking, program) };
            tokio::time::timeout(PATIENCE, both).await.expect("an answer in time").0
        }

        /// The program's next connection, with a whole head on it.
        async fn accept(&self) -> TcpStream {
            let (mut stream, _) = self.program.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                assert_ne!(stream.read_buf(&mut head).await.unwrap(), 0, "closed");
            }
            stream
        }

        async fn answer(&self, head: &str) -> TcpStream {
            let mut stream = self.accept().await;
            stream.write_all(format!("HTTP/1.1 {head}\r\n\r\n").as_bytes()).await.unwrap();
            stream
        }

        async fn door(&self) -> Arc<Door> {
            let found = self.edge.sites.find(&self.target.sandbox, &Loopback).await;
            let (site, _) = found.unwrap_or_else(|error| panic!("{error:?}"));
            site.door().expect("an open door")
        }

        /// Has a request, and the sandbox is stopped without waiting for its answer.
        async fn accept_and_stop(&self) -> TcpStream {
            let stream = self.accept().await;
            let door = self.door().await;
            door.hold();
            door.drain(Duration::from_millis(1)).await;
            stream
        }
    }

    #[tokio::test]
    async fn what_a_stop_cut_off_is_sent_again_if_that_does_no_harm() {
        let world = World::start().await;
        let program = async {
            let _cut = world.accept_and_stop().await;
            world.answer("200 OK\r\nContent-Length: 0\r\nConnection: close").await
        };
        assert_eq!(world.ask(Request::get("/"), program).await.status(), 200);
        let refused = world.ask(Request::post("/"), world.accept_and_stop()).await;
        assert_eq!(refused.status(), 503, "it may have been done");
        assert!(refused.headers().contains_key(header::RETRY_AFTER));
    }

    /// An app with so many machines, all of which are the program.
    fn app_of(world: &World, machines: usize) -> Instances {
        let sandboxes = (0..machines).map(|_| SandboxId::random()).collect();
        Instances { sandboxes, always: machines, port: world.target.port }
    }

    /// Has a request to one of an app's machines, and that one is stopped without waiting for its answer. Answers which it was.
    async fn accept_and_stop_one(world: &World, app: &Instances) -> usize {
        let _cut = world.accept().await;
        for (at, sandbox) in app.sandboxes.iter().enumerate() {
            let found = world.edge.sites.find(sandbox, &Loopback).await;
            let (site, _) = found.unwrap_or_else(|error| panic!("{error:?}"));
            if let Some(door) = site.door().filter(|door| door.count_under_way() > 0) {
                door.hold();
                door.drain(Duration::from_millis(1)).await;
                return at;
            }
        }
        panic!("no machine has a request");
    }

    async fn ask_app(
        world: &World,
        app: &Instances,
        head: http::request::Builder,
        program: impl Future<Output = ()>,
    ) -> Response<ResponseBody> {
        let request = head.uri("/").header("host", "localhost").body(()).unwrap();
        let (mut parts, ()) = request.into_parts();
        let client = Client::new(LOOPBACK, 80, false);
        let asking = world.edge.serve_app(app, &mut parts, RequestBody::Empty, &client);
        let both = async { tokio::join!(asking, program) };
        tokio::time::timeout(PATIENCE, both).await.expect("an answer in time").0
    }

    #[tokio::test]
    async fn what_a_stop_cut_off_goes_back_to_its_machine_if_no_other_answers() {
        let world = World::start().await;
        let app = app_of(&world, 2);
        let program = async {
            accept_and_stop_one(&world, &app).await;
            // The other one breaks off.
            drop(world.accept().await);
            world.answer("200 OK\r\nContent-Length: 0\r\nConnection: close").await;
        };
        assert_eq!(ask_app(&world, &app, Request::get("/"), program).await.status(), 200);
    }

    #[tokio::test]
    async fn a_request_that_all_machines_were_stopped_under_is_answered_by_one_of_them() {
        let world = World::start().await;
        let app = app_of(&world, 2);
        let program = async {
            let first = accept_and_stop_one(&world, &app).await;
            assert_ne!(accept_and_stop_one(&world, &app).await, first);
            world.answer("200 OK\r\nContent-Length: 0\r\nConnection: close").await;
        };
        assert_eq!(ask_app(&world, &app, Request::get("/"), program).await.status(), 200);
        let program = async {
            accept_and_stop_one(&world, &app).await;
        };
        let refused = ask_app(&world, &app, Request::post("/"), program).await;
        assert_eq!(refused.status(), 503, "it may have been done");
    }

    #[tokio::test]
    async fn an_upgrade_succeeds_though_its_sandbox_is_about_to_stop() {
        let world = World::start().await;
        let program = async {
            let mut stream = world.accept().await;
            world.door().await.hold();
            let head =
                "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
            stream.write_all(head.as_bytes()).await.unwrap();
            stream
        };
        let head = Request::get("/").header("connection", "upgrade").header("upgrade", "websocket");
        assert_eq!(world.ask(head, program).await.status(), 101);
    }

    #[tokio::test]
    async fn a_sandbox_has_so_many_requests_under_way_and_no_more() {
        let world = World::start().await;
        let closing = || world.answer("200 OK\r\nContent-Length: 0\r\nConnection: close");
        assert_eq!(world.ask(Request::get("/"), closing()).await.status(), 200);
        let door = world.door().await;
        let mut tickets: Vec<_> =
            (0..REQUESTS_PER_SANDBOX_MAX).map(|_| door.enter().expect("room")).collect();
        let nothing = || async { TcpStream::connect(world.program.local_addr().unwrap()).await.unwrap() };
        let refused = world.ask(Request::get("/"), nothing()).await;
        assert_eq!(refused.status(), 503);
        assert!(refused.headers().contains_key(header::RETRY_AFTER));
        drop(world.program.accept().await.unwrap());
        tickets.pop();
        assert_eq!(world.ask(Request::get("/"), closing()).await.status(), 200);
    }
}
