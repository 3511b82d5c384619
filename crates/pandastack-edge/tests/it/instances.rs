//! Several machines behind one name: which one gets a request, and what happens if it does not respond.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use pandastack_edge::limits::REQUESTS_PER_INSTANCE;
use pandastack_edge::{AppRoute, Instances, Location, Route, RouteSource, RouteUnavailable};
use pandastack_types::SandboxId;
use pandastack_types::preview::Visibility;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};

use crate::harness::{PATIENCE, TestEdge};

const MACHINES: u8 = 3;

/// An app whose machines are the addresses 127.0.0.1, .2 and .3.
struct ThreeMachines(Instances);

#[async_trait]
impl RouteSource for ThreeMachines {
    async fn find(&self, sandbox: &SandboxId) -> Result<Option<Route>, RouteUnavailable> {
        let place = self.0.sandboxes.iter().position(|one| one == sandbox);
        Ok(place.map(|place| Route {
            to: Location::Fixed(IpAddr::V4(address(u8::try_from(place + 1).unwrap()))),
            visibility: Visibility::Unlisted,
            host_header: None,
            key: None,
        }))
    }

    async fn find_name(&self, name: &str) -> Result<Option<AppRoute>, RouteUnavailable> {
        Ok((name == "shop.localhost").then(|| AppRoute::Serving(self.0.clone())))
    }
}

fn address(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 0, number)
}

/// Behaviour of a machine towards a request.
#[derive(Clone, Copy, PartialEq)]
enum Behaviour {
    Answers,
    BreaksOff,
}

/// A machine that answers with its number.
struct TestMachine {
    task: JoinHandle<()>,
    asked: Arc<AtomicUsize>,
}

struct World {
    edge: TestEdge,
    machines: Vec<TestMachine>,
    /// Requests to `/slow` wait for a permit.
    permits: Arc<Semaphore>,
}

impl World {
    async fn start(always: usize, behaviour: impl Fn(u8) -> Behaviour) -> Self {
        let permits = Arc::new(Semaphore::new(0));
        let first = TcpListener::bind((address(1), 0)).await.unwrap();
        let port = first.local_addr().unwrap().port();
        let mut listeners = vec![first];
        for number in 2..=MACHINES {
            listeners.push(TcpListener::bind((address(number), port)).await.unwrap());
        }
        let machines = (1..).zip(listeners).map(|(number, listener)| {
            let (asked, permits, behaviour) =
                (Arc::<AtomicUsize>::default(), Arc::clone(&permits), behaviour(number));
            let counter = Arc::clone(&asked);
            let task = tokio::spawn(async move {
                let mut connections = JoinSet::new();
                while let Ok((stream, _)) = listener.accept().await {
                    connections.spawn(serve(
                        stream,
                        number,
                        behaviour,
                        Arc::clone(&counter),
                        Arc::clone(&permits),
                    ));
                }
            });
            TestMachine { task, asked }
        });
        let machines = machines.collect();
        let sandboxes = (1..=MACHINES).map(|number| format!("m{number}").parse().unwrap()).collect();
        let source = ThreeMachines(Instances { sandboxes, always, port, own_domain: false });
        Self { edge: TestEdge::start_with(Arc::new(source), PATIENCE).await, machines, permits }
    }

    async fn ask(&self, method: &str, path: &str, body: &str) -> String {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: shop.localhost\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        self.edge.raw(&request).await
    }

    /// The number of the machine that answers.
    async fn answered_by(&self, method: &str, body: &str) -> char {
        let answer = self.ask(method, "/", body).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        answer.chars().last().unwrap()
    }

    fn asked(&self) -> Vec<usize> {
        self.machines.iter().map(|machine| machine.asked.load(Ordering::SeqCst)).collect()
    }
}

/// Serves the requests of one connection; each arrives in one piece.
async fn serve(
    mut stream: TcpStream,
    number: u8,
    behaviour: Behaviour,
    asked: Arc<AtomicUsize>,
    permits: Arc<Semaphore>,
) {
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = stream.read(&mut buffer).await {
        asked.fetch_add(1, Ordering::SeqCst);
        if behaviour == Behaviour::BreaksOff {
            return;
        }
        if String::from_utf8_lossy(&buffer[..read]).contains(" /slow ") {
            permits.acquire().await.unwrap().forget();
        }
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{number}");
        stream.write_all(answer.as_bytes()).await.unwrap();
    }
}

#[tokio::test]
async fn always_on_machines_get_equal_shares() {
    let world = World::start(3, |_| Behaviour::Answers).await;
    for _ in 0..9 {
        world.answered_by("GET", "").await;
    }
    assert_eq!(world.asked(), [3, 3, 3]);
}

#[tokio::test]
async fn further_machines_are_used_while_the_first_ones_are_busy() {
    let world = World::start(1, |_| Behaviour::Answers).await;
    for _ in 0..9 {
        assert_eq!(world.answered_by("GET", "").await, '1');
    }
    let count = REQUESTS_PER_INSTANCE * 2 + 1;
    let slow = futures::future::join_all((0..count).map(|_| world.ask("GET", "/slow", "")));
    let arrived = async {
        while world.asked().iter().sum::<usize>() < 9 + count {
            tokio::task::yield_now().await;
        }
        world.permits.add_permits(count);
    };
    let (answers, arrived) = tokio::join!(slow, tokio::time::timeout(PATIENCE, arrived));
    arrived.unwrap();
    assert!(answers.iter().all(|answer| answer.starts_with("HTTP/1.1 200")), "{answers:?}");
    assert_eq!(world.asked(), [9 + REQUESTS_PER_INSTANCE, REQUESTS_PER_INSTANCE, 1]);
    assert_eq!(world.answered_by("GET", "").await, '1', "the others have nothing to do again");
}

#[tokio::test]
async fn an_unreachable_machine_is_skipped() {
    let mut world = World::start(3, |_| Behaviour::Answers).await;
    for _ in 0..3 {
        world.answered_by("GET", "").await;
    }
    let gone = world.machines.remove(1);
    gone.task.abort();
    let _ = gone.task.await;
    for turn in 0..12 {
        let (method, body) = if turn % 2 == 0 { ("POST", "a body") } else { ("GET", "") };
        assert_ne!(world.answered_by(method, body).await, '2');
    }
}

#[tokio::test]
async fn a_possibly_received_request_is_retried_once_if_repeatable() {
    let world =
        World::start(3, |number| if number == 3 { Behaviour::Answers } else { Behaviour::BreaksOff }).await;
    let answer = world.ask("POST", "/", "a body").await;
    assert!(answer.starts_with("HTTP/1.1 502"), "{answer}");
    assert_eq!(world.asked().iter().sum::<usize>(), 1, "it may have had an effect");
    let world = World::start(3, |_| Behaviour::BreaksOff).await;
    let answer = world.ask("GET", "/", "").await;
    assert!(answer.starts_with("HTTP/1.1 502"), "{answer}");
    assert_eq!(world.asked().iter().sum::<usize>(), 2, "it may be what breaks them");
    let world =
        World::start(3, |number| if number == 1 { Behaviour::BreaksOff } else { Behaviour::Answers }).await;
    for _ in 0..12 {
        world.answered_by("GET", "").await;
    }
    assert_eq!(world.asked()[0], 1, "it is avoided for a while");
}
