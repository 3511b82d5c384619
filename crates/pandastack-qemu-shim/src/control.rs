//! The control thread: one request per connection, executed and answered.
//!
//! This is the only thread that the library starts. While it parks the emulator's threads, it must not
//! block on anything that they hold, so all its memory is static.

use core::ffi::c_void;

use libc::c_int;

use crate::child::ChildSetup;
use crate::confine;
use crate::descriptors::{self, KnownDescriptors, Plan, PlanError, TRANSIENT_MAX};
use crate::exclusive::Exclusive;
use crate::interpose;
use crate::park::{self, ParkError, ParkedThreads};
use crate::protocol::{
    CHILDREN_MAX, ChildReply, DESCRIPTORS_MAX, Fork, List, REPLY_BYTES_MAX, REQUEST_BYTES_MAX, RULES_MAX,
    Reply, Request, Rule, Status,
};
use crate::scan;
use crate::sys::{self, Errno};
use crate::threads;

/// A peer that connects must speak within this time, or others could not.
const REQUEST_MS_MAX: i64 = 5_000;
/// Room for the control message with all descriptors.
const ANCILLARY_BYTES: usize = 2048;

/// Buffers of the control thread.
struct Buffers {
    request: [u8; REQUEST_BYTES_MAX],
    ancillary: Aligned<ANCILLARY_BYTES>,
    reply: [u8; REPLY_BYTES_MAX],
}

#[repr(C, align(8))]
struct Aligned<const N: usize>([u8; N]);

static BUFFERS: Exclusive<Buffers> = Exclusive::new(Buffers {
    request: [0; REQUEST_BYTES_MAX],
    ancillary: Aligned([0; ANCILLARY_BYTES]),
    reply: [0; REPLY_BYTES_MAX],
});

/// Starts the control thread with every signal blocked: those of the emulator are for its own threads.
pub(crate) fn start(listener: c_int) {
    // SAFETY: plain C calls with valid pointers, before the emulator's `main`.
    unsafe {
        let mut all: libc::sigset_t = core::mem::zeroed();
        let mut before: libc::sigset_t = core::mem::zeroed();
        let mut thread: libc::pthread_t = 0;
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let argument = listener as usize as *mut c_void;
        if libc::pthread_create(&raw mut thread, core::ptr::null(), serve, argument) == 0 {
            libc::pthread_detach(thread);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, core::ptr::null_mut());
    }
}

extern "C" fn serve(listener: *mut c_void) -> *mut c_void {
    let listener = listener as usize as c_int;
    threads::learn_layout();
    loop {
        let args = [listener as usize, 0, 0, libc::SOCK_CLOEXEC as usize];
        // SAFETY: no address is requested.
        match unsafe { sys::call(libc::SYS_accept4, args) } {
            Ok(connection) => serve_one(connection as c_int),
            Err(Errno::INTR | Errno(libc::ECONNABORTED)) => {}
            // The listener is unusable; end this thread, the emulator can continue without it.
            Err(_) => return core::ptr::null_mut(),
        }
    }
}

/// One connection, from accept to close. It also returns in a child of a fork: there the connection
/// is already closed, and another thread may have reused its number.
fn serve_one(connection: c_int) {
    // SAFETY: control thread; one connection at a time.
    let Buffers { request, ancillary, reply } = unsafe { BUFFERS.get() };
    let mut received = List::EMPTY;
    let message = receive(connection, request, ancillary, &mut received);
    let outcome = match message.and_then(|len| Request::decode(&request[..len]).ok()) {
        None => Outcome::only(Reply::new(Status::BadRequest)),
        Some(Request::Identify) => Outcome::only(Reply::new(Status::Ok)),
        Some(Request::Confine { identity, lockdown }) => {
            Outcome::only(match confine::confine_process(identity, &lockdown) {
                Ok(()) => Reply::new(Status::Ok),
                Err(errno) => failed(Status::ConfineFailed, errno),
            })
        }
        Some(Request::Fork(fork)) => match fork_into(connection, &fork, &received) {
            Some(outcome) => outcome,
            None => return,
        },
        Some(Request::Replace { rules }) => Outcome::only(replace_in_place(&rules, &received)),
    };
    received.iter().copied().for_each(sys::close);
    outcome.send(connection, reply, ancillary);
    sys::close(connection);
}

fn failed(status: Status, Errno(errno): Errno) -> Reply {
    Reply { errno, ..Reply::new(status) }
}

/// Receives one whole message and its descriptors; `None` if it did not fit or did not arrive.
fn receive(
    connection: c_int,
    request: &mut [u8],
    ancillary: &mut Aligned<ANCILLARY_BYTES>,
    received: &mut List<c_int, DESCRIPTORS_MAX>,
) -> Option<usize> {
    let limit = libc::timeval { tv_sec: REQUEST_MS_MAX / 1_000, tv_usec: 0 };
    let option = [
        connection as usize,
        libc::SOL_SOCKET as usize,
        libc::SO_RCVTIMEO as usize,
        &raw const limit as usize,
        size_of::<libc::timeval>(),
    ];
    // SAFETY: the option is a timeval of the passed size.
    unsafe { sys::call(libc::SYS_setsockopt, option) }.ok()?;
    let mut part = libc::iovec { iov_base: request.as_mut_ptr().cast(), iov_len: request.len() };
    let mut header = message(&mut part, ancillary, ANCILLARY_BYTES);
    let args = [connection as usize, &raw mut header as usize, libc::MSG_CMSG_CLOEXEC as usize];
    // SAFETY: header, part and buffers are valid for the lengths they name.
    let len = unsafe { sys::call(libc::SYS_recvmsg, args) }.ok()?;
    // SAFETY: the kernel filled the header; the macros stay inside its control part.
    unsafe {
        let control = libc::CMSG_FIRSTHDR(&raw const header);
        if !control.is_null() && (*control).cmsg_type == libc::SCM_RIGHTS {
            let count = ((*control).cmsg_len - libc::CMSG_LEN(0) as usize) / size_of::<c_int>();
            for index in 0..count {
                received.push(libc::CMSG_DATA(control).cast::<c_int>().add(index).read_unaligned()).ok()?;
            }
        }
    }
    (len > 0 && header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) == 0).then_some(len)
}

fn message(part: &mut libc::iovec, ancillary: &mut Aligned<ANCILLARY_BYTES>, len: usize) -> libc::msghdr {
    // SAFETY: an all-zero header is valid.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    header.msg_iov = part;
    header.msg_iovlen = 1;
    header.msg_control = ancillary.0.as_mut_ptr().cast();
    header.msg_controllen = len;
    header
}

/// A reply with the descriptors that go with it.
struct Outcome {
    reply: Reply,
    pidfds: List<c_int, CHILDREN_MAX>,
}

impl Outcome {
    fn only(reply: Reply) -> Self {
        Self { reply, pidfds: List::EMPTY }
    }

    /// Process descriptors of the children so far, for the next one to close.
    fn elders(&self) -> [c_int; CHILDREN_MAX] {
        let mut elders = [-1; CHILDREN_MAX];
        self.pidfds.iter().zip(&mut elders).for_each(|(&fd, place)| *place = fd);
        elders
    }

    /// Sends the reply. Children that were not announced to the engine are ended.
    fn send(mut self, connection: c_int, buffer: &mut [u8], ancillary: &mut Aligned<ANCILLARY_BYTES>) {
        self.reply.pid = sys::getpid() as u32;
        (self.reply.ram_address, self.reply.ram_bytes) = interpose::ram_place();
        let sent = self
            .reply
            .encode(buffer)
            .is_ok_and(|len| self.transmit(connection, &mut buffer[..len], ancillary));
        for &pidfd in self.pidfds.iter() {
            if !sent {
                // SAFETY: no pointers are followed.
                let _ = unsafe {
                    sys::call(libc::SYS_pidfd_send_signal, [pidfd as usize, libc::SIGKILL as usize, 0, 0])
                };
            }
            sys::close(pidfd);
        }
    }

    fn transmit(
        &self,
        connection: c_int,
        reply: &mut [u8],
        ancillary: &mut Aligned<ANCILLARY_BYTES>,
    ) -> bool {
        let bytes = (self.pidfds.len() * size_of::<c_int>()) as u32;
        let mut part = libc::iovec { iov_base: reply.as_mut_ptr().cast(), iov_len: reply.len() };
        // SAFETY: the lengths are those of CHILDREN_MAX descriptors at most, far below the buffer's.
        let space = if bytes == 0 { 0 } else { unsafe { libc::CMSG_SPACE(bytes) } };
        let mut header = message(&mut part, ancillary, space as usize);
        if bytes != 0 {
            // SAFETY: the control part has room for one message of this length.
            unsafe {
                let control = libc::CMSG_FIRSTHDR(&raw const header);
                (*control).cmsg_level = libc::SOL_SOCKET;
                (*control).cmsg_type = libc::SCM_RIGHTS;
                (*control).cmsg_len = libc::CMSG_LEN(bytes) as usize;
                for (index, &pidfd) in self.pidfds.iter().enumerate() {
                    libc::CMSG_DATA(control).cast::<c_int>().add(index).write_unaligned(pidfd);
                }
            }
        }
        let args = [connection as usize, &raw mut header as usize, libc::MSG_NOSIGNAL as usize];
        // SAFETY: header, part and buffers are valid for the lengths they name.
        unsafe { sys::call(libc::SYS_sendmsg, args) }.is_ok()
    }
}

/// Puts each received descriptor over those that its rule matches. No thread is parked: the kernel
/// does each replacement atomically, and other descriptors may open and close during it.
fn replace_in_place(rules: &List<Rule, RULES_MAX>, received: &List<c_int, DESCRIPTORS_MAX>) -> Reply {
    if rules.is_empty() || received.len() != rules.len() {
        return Reply::new(Status::BadRequest);
    }
    match descriptors::replace_matching(rules, received) {
        Ok(matched) => {
            let missing = rules.iter().zip(matched).any(|(rule, count)| rule.required && count == 0);
            let status = if missing { Status::MissingDescriptor } else { Status::Ok };
            Reply { matched, ..Reply::new(status) }
        }
        Err(errno) => failed(Status::ReplaceFailed, errno),
    }
}

/// Forks the process; `None` in a child.
fn fork_into(connection: c_int, fork: &Fork<'_>, received: &List<c_int, DESCRIPTORS_MAX>) -> Option<Outcome> {
    if fork.children.is_empty() || received.len() != fork.children.len() * fork.rules.len() {
        return Some(Outcome::only(Reply::new(Status::BadRequest)));
    }
    let mut transient = List::EMPTY;
    for &fd in received.iter().chain(&[connection]) {
        transient.push(fd).ok()?;
    }
    let started_us = sys::now_us();
    Some(match park::park_all(started_us + u64::from(fork.park_ms_max) * 1_000) {
        Err(error) => Outcome::only(park_failure(error)),
        Ok(parked) => {
            let attempts = parked.attempts;
            let mut outcome = fork_parked(fork, received, &transient, parked)?;
            outcome.reply.parked_us = (sys::now_us() - started_us) as u32;
            outcome.reply.attempts = attempts;
            outcome
        }
    })
}

fn park_failure(error: ParkError) -> Reply {
    match error {
        ParkError::Timeout { tid } => {
            let mut reply = Reply::new(Status::ParkTimeout);
            reply.note.push(b"thread ");
            reply.note.push_number(tid.unsigned_abs().into());
            reply
        }
        ParkError::TooManyThreads => {
            let mut reply = Reply::new(Status::ParkTimeout);
            reply.note.push(b"more threads than can be parked");
            reply
        }
        ParkError::System(errno) => failed(Status::System, errno),
    }
}

/// Clones the children while every other thread is parked, and lets the threads go; `None` in a child.
fn fork_parked(
    fork: &Fork<'_>,
    received: &List<c_int, DESCRIPTORS_MAX>,
    transient: &List<c_int, TRANSIENT_MAX>,
    parked: ParkedThreads,
) -> Option<Outcome> {
    let known = KnownDescriptors { proc_fd: scan::proc_fd(), ram: interpose::ram_identity(), transient };
    let plan = match check_and_plan(fork, &known, &parked) {
        Ok(plan) => plan,
        Err(reply) => return Some(Outcome::only(reply)),
    };
    let robust_list = threads::robust_list();
    let mut outcome = Outcome::only(Reply { matched: plan.matched, ..Reply::new(Status::Ok) });
    let rules = fork.rules.len();
    for (index, &identity) in fork.children.iter().enumerate() {
        let child = match clone_process() {
            Ok(None) => {
                let (replacements, elders) = (replacements(received, rules, index), outcome.elders());
                let (replacements, elders) = (&replacements[..rules], &elders[..outcome.pidfds.len()]);
                let lockdown = fork.lockdown;
                ChildSetup { plan, replacements, known, elders, identity, lockdown, robust_list }
                    .complete(parked);
                return None;
            }
            Ok(Some((pid, pidfd))) => {
                outcome.pidfds.push(pidfd).ok()?;
                ChildReply { pid, status: Status::Ok, errno: 0 }
            }
            Err(Errno(errno)) => ChildReply { pid: 0, status: Status::CloneFailed, errno },
        };
        outcome.reply.children.push(child).ok()?;
    }
    Some(outcome)
}

/// Copies the process; `None` in the copy, its id and a descriptor of it otherwise.
///
/// The bare call, not fork(): its handlers would wait for locks that parked threads hold.
/// CLONE_PARENT, so that the process which reaps this one reaps its copies too, also when this one
/// is gone.
fn clone_process() -> sys::Result<Option<(u32, c_int)>> {
    let mut pidfd: c_int = -1;
    let flags = (libc::CLONE_PARENT | libc::CLONE_PIDFD) as usize;
    // SAFETY: a plain process copy; the kernel writes one descriptor.
    match unsafe { sys::call(libc::SYS_clone, [flags, 0, &raw mut pidfd as usize, 0, 0]) }? {
        0 => Ok(None),
        pid => Ok(Some((pid as u32, pidfd))),
    }
}

/// Checks everything that can prevent a fork.
#[expect(clippy::result_large_err, reason = "there is no heap to box it in")]
fn check_and_plan(
    fork: &Fork<'_>,
    known: &KnownDescriptors<'_>,
    parked: &ParkedThreads,
) -> Result<&'static Plan, Reply> {
    if interpose::has_shared_mappings() {
        return Err(Reply::new(Status::SharedMapping));
    }
    // SAFETY: parked as long as `parked` lives.
    if !parked.slots().all(|slot| threads::is_layout_known(unsafe { slot.frame() })) {
        return Err(Reply::new(Status::ThreadLayout));
    }
    descriptors::plan(&fork.rules, known).map_err(|error| match error {
        PlanError::Unknown(note) => Reply { note, ..Reply::new(Status::UnknownDescriptor) },
        PlanError::Missing(note) => Reply { note, ..Reply::new(Status::MissingDescriptor) },
        PlanError::System(errno) => failed(Status::System, errno),
    })
}

/// The replacements of one child: a consecutive run of the received descriptors.
fn replacements(
    received: &List<c_int, DESCRIPTORS_MAX>,
    rules: usize,
    index: usize,
) -> [c_int; crate::protocol::RULES_MAX] {
    let mut own = [-1; crate::protocol::RULES_MAX];
    received.iter().skip(index * rules).take(rules).zip(&mut own).for_each(|(&fd, place)| *place = fd);
    own
}
