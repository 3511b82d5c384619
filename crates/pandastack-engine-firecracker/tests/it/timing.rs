//! How long it takes to restore a machine and to hear from its guest.

use std::time::{Duration, Instant};

use pandastack_engine_firecracker::Launcher;

use crate::fixture::FirecrackerFixture;
use crate::lifecycle::fixture;

const ROUNDS: usize = 20;

async fn measure(launcher: Launcher) {
    let fixture = fixture!(launcher);
    let booted = fixture.booted().await;
    booted.pause().await.unwrap();
    let template = fixture.save_over(&*booted, &booted.record().base_memory.clone()).await;
    booted.kill().await.unwrap();
    let (mut restores, mut resumes, mut answers) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let started = Instant::now();
        let machine = fixture.restored(&template).await;
        restores.push(started.elapsed());
        machine.resume().await.unwrap();
        resumes.push(started.elapsed());
        assert_eq!(fixture.ask_for(&*machine, "recall").await, 1);
        answers.push(started.elapsed());
        machine.kill().await.unwrap();
    }
    println!(
        "measured: {launcher:?}: restored after {:.1} ms, resumed after {:.1} ms, first answer after {:.1} ms \
         (median of {ROUNDS})",
        median_ms(restores),
        median_ms(resumes),
        median_ms(answers)
    );
}

fn median_ms(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64() * 1_000.0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timing_of_restores() {
    measure(Launcher::Direct).await;
    measure(Launcher::Jailer).await;
}
