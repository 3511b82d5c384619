use super::*;
use crate::sql::sealed_columns::{APPS, PREVIEW_REPOS, SCHEDULES};

const PLACE: SealedField<'static> =
    SealedField { table: "apps", workspace: "w", row: "a", field: "git_token" };

fn sealer() -> Sealer {
    Sealer::new(&LinkKey::new(&[7; 32]).unwrap())
}

fn rotate(sealer: &Sealer) {
    let mut ring = sealer.0.ring();
    ring.stage(&[8; 32]).unwrap();
    ring.activate();
    sealer.0.replace(ring);
}

#[test]
fn a_sealed_value_opens_only_in_its_own_field() {
    let sealer = sealer();
    let sealed = sealer.seal(PLACE, b"s3cret").unwrap();
    assert_eq!(sealer.open(PLACE, &sealed).unwrap(), b"s3cret");
    for other in [
        SealedField { table: "functions", ..PLACE },
        SealedField { workspace: "x", ..PLACE },
        SealedField { row: "b", ..PLACE },
        SealedField { field: "webhook_secret", ..PLACE },
    ] {
        assert!(matches!(sealer.open(other, &sealed), Err(SealError::Altered)), "{other:?}");
    }
    for at in 0..sealed.len() {
        let mut changed = sealed.clone();
        changed[at] ^= 4;
        assert!(sealer.open(PLACE, &changed).is_err(), "byte {at}");
        assert!(sealer.open(PLACE, &sealed[..at]).is_err(), "cut at {at}");
    }
    let other = Sealer::new(&LinkKey::new(&[9; 32]).unwrap());
    assert!(other.open(PLACE, &sealed).is_err(), "another installation");
}

#[test]
fn only_secret_fields_are_sealed_in_json() {
    let sealer = sealer();
    let plain = json!({ "git_url": "https://x", "git_token": "s3cret", "webhook_secret": null,
        "env": { "A": { "value": "hidden", "secret": true } } });
    let text = sealer.to_json(&APPS, "w", "a", &plain).unwrap();
    assert!(text.contains("https://x") && !text.contains("s3cret") && !text.contains("hidden"), "{text}");
    let opened = sealer.opened(&APPS, "w", "a", &text).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&opened).unwrap(), plain);
    assert!(sealer.opened(&APPS, "w", "b", &text).is_err(), "moved to another row");
}

#[test]
fn unreadable_secrets_are_removed_and_other_fields_kept() {
    let (sealer, other) = (sealer(), Sealer::new(&LinkKey::new(&[9; 32]).unwrap()));
    let plain = json!({ "git_url": "u", "git_token": "s3cret", "env": { "A": 1 } });
    let text = sealer.to_json(&APPS, "w", "a", &plain).unwrap();
    assert_eq!(sealer.readable(&APPS, "w", "a", &text).unwrap(), None);
    assert_eq!(other.readable(&APPS, "w", "a", &text).unwrap().unwrap(), r#"{"git_url":"u"}"#);
    let text = sealer.to_json(&SCHEDULES, "w", "a", &json!({ "target": { "type": "command" } })).unwrap();
    assert!(other.readable(&SCHEDULES, "w", "a", &text).unwrap().unwrap().contains(LOST));
    let text = sealer.to_json(&PREVIEW_REPOS, "w", "a", &plain).unwrap();
    assert_eq!(other.readable(&PREVIEW_REPOS, "w", "a", &text).unwrap().unwrap(), "{}");
}

#[test]
fn sealed_values_are_resealed_once_per_generation() {
    let sealer = sealer();
    let plain = r#"{"git_token":"s3cret","env":{}}"#;
    let first = sealer.resealed(&APPS, "w", "a", plain).unwrap().unwrap();
    assert_eq!(sealer.resealed(&APPS, "w", "a", &first).unwrap(), None);
    rotate(&sealer);
    let second = sealer.resealed(&APPS, "w", "a", &first).unwrap().unwrap();
    assert_eq!(sealer.resealed(&APPS, "w", "a", &second).unwrap(), None);
    let old = self::sealer();
    let refused = old.opened(&APPS, "w", "a", &second).unwrap_err();
    assert!(pandastack_types::chain(&refused).contains("generation 2"), "{refused:?}");
    for text in [&first, &second] {
        let opened = sealer.opened(&APPS, "w", "a", text).unwrap();
        let same =
            serde_json::from_str::<Value>(&opened).unwrap() == json!({ "env": {}, "git_token": "s3cret" });
        assert!(same, "{opened}");
    }
}
