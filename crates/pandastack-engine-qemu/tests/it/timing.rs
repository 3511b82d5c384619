//! Duration of the engine's own steps. Run by hand: `cargo test --release -p pandastack-engine-qemu
//! -- --ignored --nocapture timing`.

use std::time::{Duration, Instant};

use pandastack_engine::conformance::{Fixture, Question};
use pandastack_engine::{Confinement, Restore, SaveTarget};

use crate::fixture::QemuFixture;

const FORKS: usize = 200;
const RESTORES: usize = 20;

fn print(name: &str, mut samples: Vec<Duration>) {
    samples.sort();
    let at = |part: f64| samples[((samples.len() - 1) as f64 * part) as usize].as_secs_f64() * 1_000.0;
    let (p50, p90, p99, n) = (at(0.5), at(0.9), at(0.99), samples.len());
    println!("{name:<40} p50 {p50:>7.2} ms  p90 {p90:>7.2}  p99 {p99:>7.2}  n {n}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures, decides nothing"]
async fn timing() {
    let fixture = QemuFixture::prepare(Some(Confinement::Zygote)).await.unwrap();
    let started = Instant::now();
    let booted = fixture.booted().await;
    print("boot to first answer", vec![started.elapsed()]);
    booted.pause().await.unwrap();
    let (state, memory) =
        (fixture.fresh_path("state"), fixture.clone_memory(&booted.record().base_memory).await);
    let saved = booted
        .save(SaveTarget {
            state: state.clone(),
            memory: memory.clone(),
            base: booted.record().base_memory.clone(),
        })
        .await
        .unwrap();
    println!("full save: {saved:?}");
    let disk = booted.record().disk.clone();
    let (mut restores, mut answers, mut saves) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..RESTORES {
        let place = fixture.place(&disk).await;
        let started = Instant::now();
        let (state, memory) = (state.clone(), memory.clone());
        let restore = Restore { shape: fixture.shape(), place, state, memory };
        let machine = fixture.engine().restore(restore).await.unwrap();
        restores.push(started.elapsed());
        machine.resume().await.unwrap();
        fixture.ask_machine(&*machine, Question::Recall).await;
        answers.push(started.elapsed());
        machine.pause().await.unwrap();
        let base = machine.record().base_memory.clone();
        let memory = fixture.clone_memory(&base).await;
        let target = SaveTarget { state: fixture.fresh_path("state"), memory, base };
        saves.push(machine.save(target).await.unwrap().took);
        machine.kill().await.unwrap();
    }
    print("restore", restores);
    print("restore to first answer", answers);
    print("save after one answer", saves);
    let (mut forks, mut resumes, mut answers) = (Vec::new(), Vec::new(), Vec::new());
    let (mut again, mut kills) = (Vec::new(), Vec::new());
    for _ in 0..FORKS {
        let place = fixture.place_beside(&*booted).await;
        let started = Instant::now();
        let child = booted.fork(vec![place]).await.unwrap().remove(0).unwrap();
        forks.push(started.elapsed());
        let resumed = Instant::now();
        child.resume().await.unwrap();
        resumes.push(resumed.elapsed());
        let mut stream = child.connect_guest().await.unwrap();
        fixture.ask(&mut stream, Question::Recall).await.unwrap();
        answers.push(started.elapsed());
        let asked = Instant::now();
        fixture.ask(&mut stream, Question::Recall).await.unwrap();
        again.push(asked.elapsed());
        let killed = Instant::now();
        child.kill().await.unwrap();
        kills.push(killed.elapsed());
    }
    print("fork", forks);
    print("resume of a fork", resumes);
    print("fork to first answer", answers);
    print("second answer", again);
    print("kill", kills);
    booted.kill().await.unwrap();
}
