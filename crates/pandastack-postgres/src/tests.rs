//! Tests of sessions with fake servers.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::BytesMut;
use data_encoding::BASE64;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::backend::{Backend, ConnectError, Databases};
use crate::cancel::CancelTable;
use crate::endpoint::Endpoint;
use crate::login::{Credentials, LoginError, Session};
use crate::query::{Bounds, Outcome, RunError, SqlError, Statement, Transaction};
use crate::server::run_session;
use crate::startup::{Packet, Startup, read};
use crate::startup_retry;
use crate::wire::{Fatal, message, take};

/// Role, database and password.
const PASSWORD: &str = "app";

/// Behaviour of one connection of the server.
#[derive(Clone, Copy)]
enum Behaviour {
    /// Answers the startup with an error of this SQLSTATE and hangs up.
    Refuses(&'static str),
    /// Accepts the startup and disconnects without a reply.
    HangsUp,
    /// Accepts the startup and sends nothing more.
    Silent,
    /// Accepts the login, answers the statements up to `Sync` with these messages, and sends
    /// nothing more.
    Answers(&'static [(u8, &'static [u8])]),
    /// The same without a password, for a client from outside these tests.
    AnswersAnybody(&'static [(u8, &'static [u8])]),
    /// The same as `Answers`, and then disconnects.
    AnswersAndEnds(&'static [(u8, &'static [u8])]),
}

/// A database whose connections follow the given behaviours, one after the other; the last is
/// repeated.
struct Fake {
    plays: Mutex<VecDeque<Behaviour>>,
    connects: Mutex<usize>,
    /// Notified when a server has received its statements.
    asked: Arc<Notify>,
    closing: CancellationToken,
    cut: CancellationToken,
}

impl Fake {
    fn new(plays: impl IntoIterator<Item = Behaviour>) -> Arc<Self> {
        let (closing, cut) = (CancellationToken::new(), CancellationToken::new());
        Arc::new(Self {
            plays: Mutex::new(plays.into_iter().collect()),
            connects: Mutex::new(0),
            asked: Arc::default(),
            closing,
            cut,
        })
    }

    fn connects(&self) -> usize {
        *self.connects.lock().unwrap()
    }

    /// Behaves like a grant when a machine is put to sleep.
    fn stop(&self) {
        self.closing.cancel();
        self.cut.cancel();
    }
}

#[async_trait]
impl Databases for Fake {
    async fn connect(&self, _endpoint: &Endpoint) -> Result<Backend, ConnectError> {
        *self.connects.lock().unwrap() += 1;
        let plays = {
            let mut plays = self.plays.lock().unwrap();
            if plays.len() > 1 { plays.pop_front() } else { plays.front().copied() }
        };
        let (ours, theirs) = duplex(64 * 1024);
        let asked = Arc::clone(&self.asked);
        tokio::spawn(async move { play(theirs, plays.unwrap(), &asked).await });
        let backend = Backend::uncounted(Box::new(ours));
        Ok(Backend { closing: self.closing.clone(), cut: self.cut.clone(), ..backend })
    }
}

/// The server's half of SCRAM, for [`PASSWORD`].
async fn prove(stream: &mut DuplexStream) -> bool {
    let mut heard = BytesMut::new();
    let offer = [&10_i32.to_be_bytes()[..], b"SCRAM-SHA-256\0\0"].concat();
    stream.write_all(&message(b'R', &offer)).await.unwrap();
    let Some(first) = next_message(stream, &mut heard).await else { return false };
    // The mechanism's name and a length precede it; `n,,` is not signed.
    let bare = first.split_once("n,,").unwrap().1.to_owned();
    let nonce = bare.split_once("r=").unwrap().1;
    let verifier = crate::login::scram_verifier(PASSWORD);
    let (salt, server_key) =
        (verifier.split(['$', ':']).nth(2).unwrap(), verifier.rsplit(':').next().unwrap());
    let challenge = format!("r={nonce}more,s={salt},i=4096");
    let reply = [&11_i32.to_be_bytes()[..], challenge.as_bytes()].concat();
    stream.write_all(&message(b'R', &reply)).await.unwrap();
    let Some(last) = next_message(stream, &mut heard).await else { return false };
    let signed = format!("{bare},{challenge},{}", last.rsplit_once(",p=").unwrap().0);
    let key = BASE64.decode(server_key.as_bytes()).unwrap();
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).unwrap();
    mac.update(signed.as_bytes());
    let proof = format!("v={}", BASE64.encode(&mac.finalize().into_bytes()));
    let reply = [&12_i32.to_be_bytes()[..], proof.as_bytes()].concat();
    stream.write_all(&message(b'R', &reply)).await.unwrap();
    true
}

/// The client's next message, as text.
async fn next_message(stream: &mut DuplexStream, heard: &mut BytesMut) -> Option<String> {
    loop {
        if let Some((_, body)) = take(heard, 1 << 20).unwrap() {
            return Some(String::from_utf8_lossy(&body).into_owned());
        }
        if stream.read_buf(heard).await.unwrap_or(0) == 0 {
            return None;
        }
    }
}

#[tokio::test]
async fn servers_without_scram_are_refused_and_never_get_the_password() {
    for (asks, what) in [(3_i32, "the password itself"), (5, "an old hash of it"), (0, "nothing")] {
        let (ours, mut theirs) = duplex(64 * 1024);
        let credentials = credentials();
        let logging_in = Session::over(Backend::uncounted(Box::new(ours)), &credentials);
        let server = async {
            let Ok(Packet::Startup(_)) = read(&mut theirs).await else { panic!("no startup") };
            let salt: &[u8] = if asks == 5 { b"salt" } else { b"" };
            theirs.write_all(&message(b'R', &[&asks.to_be_bytes()[..], salt].concat())).await.unwrap();
            let mut heard = Vec::new();
            theirs.read_to_end(&mut heard).await.unwrap();
            heard
        };
        let refused = async { logging_in.await.err().map(|error| error.to_string()) };
        let (refused, heard) = tokio::join!(refused, server);
        assert!(refused.is_some() && heard.is_empty(), "asked for {what}: {refused:?} {heard:?}");
    }
}

async fn play(mut stream: DuplexStream, plays: Behaviour, asked: &Notify) {
    let Ok(Packet::Startup(_)) = read(&mut stream).await else { return };
    let (answers, stays) = match plays {
        Behaviour::Refuses(code) => {
            let _ = stream.write_all(&Fatal::new(code, "not now").encode()).await;
            return;
        }
        Behaviour::HangsUp => return,
        Behaviour::Silent => (None, true),
        Behaviour::Answers(answers) | Behaviour::AnswersAnybody(answers) => (Some(answers), true),
        Behaviour::AnswersAndEnds(answers) => (Some(answers), false),
    };
    if let Some(answers) = answers {
        if !matches!(plays, Behaviour::AnswersAnybody(_)) && !prove(&mut stream).await {
            return;
        }
        let welcome = [message(b'R', &[0; 4]), message(b'K', &[0, 0, 0, 9, 0, 0, 0, 7]), message(b'Z', b"I")];
        stream.write_all(&welcome.concat()).await.unwrap();
        let mut heard = BytesMut::new();
        loop {
            match take(&mut heard, 1 << 20).unwrap() {
                Some((b'S', _)) => break,
                Some(_) => {}
                None if stream.read_buf(&mut heard).await.unwrap_or(0) == 0 => return,
                None => {}
            }
        }
        asked.notify_one();
        for (kind, body) in answers {
            stream.write_all(&message(*kind, body)).await.unwrap();
        }
    }
    if stays {
        let _ = stream.read_to_end(&mut Vec::new()).await;
    }
}

/// Timeout of a statement; shorter than the wait for a server that accepts no sessions.
const WAIT: Duration = Duration::from_secs(3);
/// `SELECT 1` that is done.
const DONE: &[(u8, &[u8])] = &[(b'C', b"SELECT 1\0"), (b'Z', b"I")];

fn endpoint() -> Endpoint {
    Endpoint::from_label("a1").unwrap()
}

fn credentials() -> Credentials {
    let word = || PASSWORD.to_owned();
    Credentials { user: word(), password: word(), database: word(), parameters: BTreeMap::new() }
}

async fn ran(fake: &Fake, sql: &str, transaction: Option<&Transaction>) -> Result<Vec<Outcome>, RunError> {
    let mut session = Session::open(fake, &endpoint(), &credentials()).await?;
    let statement = Statement { sql: sql.to_owned(), parameters: Vec::new() };
    let bounds = Bounds { rows_max: 2, wait: WAIT };
    let outcomes = session.run(fake, &endpoint(), &[statement], transaction, bounds).await;
    session.close().await;
    outcomes
}

#[track_caller]
fn code(outcomes: Result<Vec<Outcome>, RunError>) -> SqlError {
    match outcomes {
        Err(RunError::Session(LoginError::Sql(error))) => *error,
        other => panic!("no error of a server: {other:?}"),
    }
}

#[tokio::test]
async fn a_stopping_machine_ends_its_statement_without_waking() {
    let fake = Fake::new([Behaviour::Answers(&[])]);
    let stopped = Arc::clone(&fake);
    tokio::spawn(async move {
        stopped.asked.notified().await;
        stopped.stop();
    });
    let began = tokio::time::Instant::now();
    let error = code(ran(&fake, "SELECT pg_sleep(60)", None).await);
    assert_eq!(error.code, "57P01");
    assert!(error.field('H').is_some_and(|hint| hint.contains("connect again")), "{error:?}");
    assert!(began.elapsed() < WAIT, "{:?}", began.elapsed());
    assert_eq!(fake.connects(), 1);
}

#[tokio::test]
async fn a_timed_out_statement_is_cancelled_on_running_machines() {
    for (is_closing, connects) in [(false, 2), (true, 1)] {
        let fake = Fake::new([Behaviour::Answers(&[])]);
        if is_closing {
            fake.closing.cancel();
        }
        assert_eq!(code(ran(&fake, "SELECT pg_sleep(60)", None).await).code, "57014");
        assert_eq!(fake.connects(), connects, "closing: {is_closing}");
    }
}

#[tokio::test]
async fn sql_copy_is_refused_before_execution() {
    // Were it sent, the transaction would be committed, and its rows lost.
    const COPIED: &[(u8, &[u8])] = &[
        (b'C', b"BEGIN\0"),
        (b'H', b"\0\0\0"),
        (b'd', b"row"),
        (b'c', b""),
        (b'C', b"COPY 1\0"),
        (b'C', b"COMMIT\0"),
        (b'Z', b"I"),
    ];
    let transaction = Transaction::default();
    let out =
        code(ran(&Fake::new([Behaviour::Answers(COPIED)]), "COPY t TO STDOUT", Some(&transaction)).await);
    let into =
        code(ran(&Fake::new([Behaviour::Answers(&[(b'G', b"\0\0\0")])]), "copy t from stdin", None).await);
    assert_eq!((out.code.as_str(), into.code.as_str()), ("0A000", "0A000"));
    assert!(out.message.contains("psql"), "{out}");
}

#[tokio::test]
async fn a_truncated_insert_is_not_reported_as_a_select() {
    const ROWS: &[(u8, &[u8])] = &[(b'D', b"\0\0"), (b'D', b"\0\0"), (b's', b""), (b'Z', b"I")];
    for (sql, command, count) in [("INSERT INTO t", "INSERT", None), ("SELECT n", "SELECT", Some(2))] {
        let outcomes = ran(&Fake::new([Behaviour::Answers(ROWS)]), sql, None).await.unwrap();
        assert_eq!((outcomes[0].command(), outcomes[0].row_count()), (command, count));
        assert!(outcomes[0].truncated);
    }
}

#[tokio::test]
async fn an_error_sent_before_a_disconnect_is_returned() {
    const ENDED: &[(u8, &[u8])] = &[(b'E', b"SFATAL\0C57P01\0Mterminating connection\0\0")];
    let error = code(ran(&Fake::new([Behaviour::AnswersAndEnds(ENDED)]), "SELECT 1", None).await);
    assert_eq!((error.code.as_str(), error.message.as_str()), ("57P01", "terminating connection"));
    let silent = ran(&Fake::new([Behaviour::AnswersAndEnds(&[])]), "SELECT 1", None).await;
    assert!(matches!(silent, Err(RunError::Session(LoginError::Broken(_)))), "{silent:?}");
}

#[tokio::test]
async fn a_login_is_retried_while_the_server_starts() {
    let plays = [
        Behaviour::Refuses("57P03"),
        Behaviour::Refuses("57P01"),
        Behaviour::HangsUp,
        Behaviour::Answers(DONE),
    ];
    let fake = Fake::new(plays);
    assert_eq!(ran(&fake, "SELECT 1", None).await.unwrap().len(), 1);
    assert_eq!(fake.connects(), 4);

    let began = tokio::time::Instant::now();
    assert_eq!(code(ran(&Fake::new([Behaviour::Refuses("57P03")]), "SELECT 1", None).await).code, "57P03");
    assert!(began.elapsed() >= startup_retry::WAIT, "{:?}", began.elapsed());

    let full = Fake::new([Behaviour::Refuses("53300"), Behaviour::Answers(DONE)]);
    assert_eq!(code(ran(&full, "SELECT 1", None).await).code, "53300");
}

#[tokio::test]
async fn a_hanging_login_is_retried_then_times_out() {
    let fake = Fake::new([Behaviour::Silent, Behaviour::Answers(DONE)]);
    assert_eq!(ran(&fake, "SELECT 1", None).await.unwrap().len(), 1);
    assert_eq!(fake.connects(), 2);

    let silent = Fake::new([Behaviour::Silent]);
    let outcome = ran(&silent, "SELECT 1", None).await;
    assert!(matches!(outcome, Err(RunError::Session(LoginError::Late))), "{outcome:?}");
}

/// A client of `run_session`, and its task.
fn client_of(fake: &Arc<Fake>) -> (DuplexStream, tokio::task::JoinHandle<()>) {
    let (client, server) = duplex(64 * 1024);
    let fake = Arc::clone(fake);
    let task = tokio::spawn(async move {
        let parameters = BTreeMap::from([("user".to_owned(), "app".to_owned())]);
        let startup = Startup { parameters, newer: None };
        run_session(server, startup, &endpoint(), fake.as_ref(), &Arc::<CancelTable>::default()).await;
    });
    (client, task)
}

#[tokio::test]
async fn a_relayed_session_waits_for_a_starting_server() {
    let plays = [
        Behaviour::Refuses("57P03"),
        Behaviour::Refuses("57P03"),
        Behaviour::HangsUp,
        Behaviour::AnswersAnybody(DONE),
    ];
    let (mut client, task) = client_of(&Fake::new(plays));
    // Sent before the server's welcome, and not lost.
    client.write_all(&message(b'S', b"")).await.unwrap();
    let (mut heard, mut kinds) = (BytesMut::new(), Vec::new());
    while kinds.len() < 5 {
        match take(&mut heard, 1024).unwrap() {
            Some((kind, _)) => kinds.push(kind),
            None => assert!(client.read_buf(&mut heard).await.unwrap() > 0, "{kinds:?}"),
        }
    }
    assert_eq!(kinds, *b"RKZCZ", "nothing of what was before");
    drop(client);
    task.await.unwrap();
}

#[tokio::test]
async fn relayed_sessions_end_on_server_refusal_or_client_close() {
    for plays in [Behaviour::Refuses("57P03"), Behaviour::Refuses("28000")] {
        let (mut client, task) = client_of(&Fake::new([plays]));
        let mut heard = Vec::new();
        client.read_to_end(&mut heard).await.unwrap();
        let Behaviour::Refuses(code) = plays else { unreachable!() };
        assert_eq!(SqlError::parse(&heard[5..]).code, code);
        task.await.unwrap();
    }
    for plays in [Behaviour::Refuses("57P03"), Behaviour::Silent] {
        let (client, task) = client_of(&Fake::new([plays]));
        drop(client);
        tokio::time::timeout(WAIT, task).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn sessions_bound_what_a_hostile_server_sends() {
    let session = |sent: Vec<u8>| {
        let stream = tokio::io::join(std::io::Cursor::new(sent), tokio::io::sink());
        Session::resumed(Backend::uncounted(Box::new(stream)))
    };
    let ready = message(b'Z', b"I");
    let parameters = [message(b'S', &[b'x'; 1000]).repeat(100), ready.to_vec()].concat();
    let greeted = session(parameters).read_greeting().await;
    assert!(matches!(greeted, Err(LoginError::Broken(_))), "{greeted:?}");
    let results = [message(b'I', b"").repeat(8), ready.to_vec()].concat();
    // The transaction's own have results, too.
    assert_eq!(session(results.clone()).collect(5).await.unwrap().len(), 8);
    assert!(session(results).collect(4).await.is_err(), "more results than statements");
}
