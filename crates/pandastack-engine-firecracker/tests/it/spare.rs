//! Processes that are started ahead of their machines.

use std::time::Duration;

use pandastack_engine::MachineFiles;
use pandastack_engine::conformance::Fixture;
use pandastack_engine_firecracker::Launcher;
use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::{FirecrackerFixture, Snapshot, processes_of};
use crate::lifecycle::fixture;
use crate::network::tap;

const GONE_MAX: Duration = Duration::from_secs(10);

async fn template(fixture: &FirecrackerFixture) -> Snapshot {
    let booted = fixture.booted().await;
    booted.pause().await.unwrap();
    let template = fixture.save_over(&*booted, &booted.record().base_memory.clone()).await;
    booted.kill().await.unwrap();
    template
}

fn processes() -> Vec<i32> {
    processes_of(std::process::id())
}

/// Polls until a process has ended: the process table has no events.
async fn until_gone(pid: i32) {
    let gone = async {
        while processes().contains(&pid) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(GONE_MAX, gone).await.expect("the process ends");
}

async fn place_with_spare(fixture: &FirecrackerFixture, template: &Snapshot) -> (MachineFiles, i32) {
    let (device, _namespace) = tap("spare0");
    let place = fixture.with_spare(fixture.place(&template.disk).await, device).await;
    let [pid] = processes()[..] else { panic!("one process, started ahead") };
    (place, pid)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_is_restored_into_the_spare_process() {
    let fixture = fixture!(Launcher::Jailer);
    let template = template(&fixture).await;
    let (place, pid) = place_with_spare(&fixture, &template).await;
    let machine = fixture.restored_in(&template, place).await;
    machine.resume().await.unwrap();
    assert_eq!(fixture.ask_for(&*machine, "recall").await, 1);
    assert_eq!(machine.record().pid as i32, pid);
    machine.kill().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_spare_process_is_replaced() {
    let fixture = fixture!(Launcher::Jailer);
    let template = template(&fixture).await;
    let (place, pid) = place_with_spare(&fixture, &template).await;
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    until_gone(pid).await;
    let machine = fixture.restored_in(&template, place).await;
    machine.resume().await.unwrap();
    assert_eq!(fixture.ask_for(&*machine, "recall").await, 1);
    machine.kill().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unused_spare_process_exits() {
    let fixture = fixture!(Launcher::Jailer);
    let template = template(&fixture).await;
    let (place, pid) = place_with_spare(&fixture, &template).await;
    drop(place);
    until_gone(pid).await;
}
