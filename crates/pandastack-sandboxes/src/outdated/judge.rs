//! Compares the components of a frozen state with its host's current ones, and with advisories.

use std::cmp::Ordering;

use pandastack_types::agent_api::{Components, EngineVersion, GuestVersion};
use pandastack_types::api::{Component, OutdatedComponent};

use super::advisories::Advisory;
use super::version::{compare, semantic};

/// Characters of a build's digest that are shown.
const BUILD_SHOWN_CHARS: usize = 8;

/// The outdated components of a state. A component whose version is unknown is older than every version
/// that is known.
pub(super) fn judge(
    found: &Components,
    current: &Components,
    advisories: &[Advisory],
) -> Vec<OutdatedComponent> {
    let all = [kernel(found, current), guest(found, current), engine(found, current)];
    let named = |verdict: Comparison| {
        let matches =
            |advisory: &&Advisory| advisory.component == verdict.component && verdict.is_named_by(advisory);
        let advisories: Vec<_> = advisories.iter().filter(matches).map(Advisory::shown).collect();
        let Comparison { component, shown: (found, current), older, .. } = verdict;
        (older || !advisories.is_empty()).then_some(OutdatedComponent {
            component,
            found,
            current,
            advisories,
        })
    };
    all.into_iter().filter_map(named).collect()
}

/// A component of a state beside the one of today.
struct Comparison {
    component: Component,
    /// Version in the state, for comparison.
    version: Option<String>,
    /// Name of the engine.
    engine: Option<String>,
    /// Both versions, for display.
    shown: (Option<String>, Option<String>),
    older: bool,
}

impl Comparison {
    fn is_named_by(&self, advisory: &Advisory) -> bool {
        let is_engine = match (&advisory.engine, &self.engine) {
            (Some(meant), Some(name)) => name.starts_with(meant.as_str()),
            _ => true,
        };
        let below = |version: &String| {
            let limit = match self.component {
                Component::Guest => semantic(&advisory.below),
                Component::Kernel | Component::Engine => advisory.below.clone(),
            };
            compare(version, &limit) == Ordering::Less
        };
        is_engine && self.version.as_ref().is_none_or(below)
    }
}

fn kernel(found: &Components, current: &Components) -> Comparison {
    let older = match (&found.kernel, &current.kernel) {
        (Some(found), Some(current)) => compare(found, current) == Ordering::Less,
        (None, current) => current.is_some(),
        (Some(_), None) => false,
    };
    Comparison {
        component: Component::Kernel,
        version: found.kernel.clone(),
        engine: None,
        shown: (found.kernel.clone(), current.kernel.clone()),
        older,
    }
}

fn guest(found: &Components, current: &Components) -> Comparison {
    let older = match (&found.guest, &current.guest) {
        (Some(found), Some(current)) => match compare(&semantic(&found.version), &semantic(&current.version))
        {
            Ordering::Less => true,
            Ordering::Equal => found.build != current.build,
            Ordering::Greater => false,
        },
        (None, current) => current.is_some(),
        (Some(_), None) => false,
    };
    let shown = |guest: &GuestVersion| {
        let build: String = guest.build.chars().take(BUILD_SHOWN_CHARS).collect();
        format!("{} (build {build})", guest.version)
    };
    Comparison {
        component: Component::Guest,
        version: found.guest.as_ref().map(|guest| semantic(&guest.version)),
        engine: None,
        shown: (found.guest.as_ref().map(shown), current.guest.as_ref().map(shown)),
        older,
    }
}

fn engine(found: &Components, current: &Components) -> Comparison {
    let older = match (&found.engine, &current.engine) {
        (Some(found), Some(current)) if found.name == current.name => {
            compare(&found.version, &current.version) == Ordering::Less
        }
        (None, current) => current.is_some(),
        // A different engine; a host does not change its engine while it has states of it.
        (Some(_), _) => false,
    };
    let shown = |engine: &EngineVersion| format!("{} {}", engine.name, engine.version);
    Comparison {
        component: Component::Engine,
        version: found.engine.as_ref().map(|engine| engine.version.clone()),
        engine: found.engine.as_ref().or(current.engine.as_ref()).map(|engine| engine.name.clone()),
        shown: (found.engine.as_ref().map(shown), current.engine.as_ref().map(shown)),
        older,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn components(kernel: &str, guest: (&str, &str), engine: (&str, &str)) -> Components {
        let owned = str::to_owned;
        Components {
            kernel: Some(owned(kernel)),
            guest: Some(GuestVersion { version: owned(guest.0), build: owned(guest.1) }),
            engine: Some(EngineVersion { name: owned(engine.0), version: owned(engine.1) }),
        }
    }

    fn today() -> Components {
        components("6.1.0-37", ("0.5.0", "b2"), ("qemu-tcg", "7.2.22"))
    }

    fn advisory(component: Component, below: &str, engine: Option<&str>) -> Advisory {
        Advisory {
            id: "A-1".to_owned(),
            component,
            below: below.to_owned(),
            engine: engine.map(str::to_owned),
            severity: None,
            note: None,
        }
    }

    #[track_caller]
    fn outdated(found: &Components, advisories: &[Advisory]) -> Vec<Component> {
        judge(found, &today(), advisories).into_iter().map(|outdated| outdated.component).collect()
    }

    #[test]
    fn older_components_are_outdated() {
        use Component::{Engine, Guest, Kernel};
        assert_eq!(outdated(&today(), &[]), []);
        let qemu = ("qemu-tcg", "7.2.22");
        assert_eq!(outdated(&components("6.1.0-9", ("0.5.0", "b2"), qemu), &[]), [Kernel]);
        assert_eq!(outdated(&components("6.1.0-37", ("0.4.9", "b2"), qemu), &[]), [Guest]);
        assert_eq!(outdated(&components("6.1.0-37", ("0.5.0", "b1"), qemu), &[]), [Guest], "another build");
        assert_eq!(outdated(&components("6.1.0-40", ("0.6.0", "b3"), qemu), &[]), [], "newer");
        let older = components("6.1.0-37", ("0.5.0", "b2"), ("qemu-tcg", "7.2.9"));
        assert_eq!(outdated(&older, &[]), [Engine]);
        assert_eq!(outdated(&Components::default(), &[]), [Kernel, Guest, Engine], "unknown");
        assert_eq!(judge(&Components::default(), &Components::default(), &[]), [], "nothing to compare with");
    }

    #[test]
    fn an_advisory_applies_to_versions_below_its_limit() {
        use Component::{Engine, Guest, Kernel};
        assert_eq!(outdated(&today(), &[advisory(Kernel, "6.1.0-38", None)]), [Kernel]);
        assert_eq!(outdated(&today(), &[advisory(Kernel, "6.1.0-37", None)]), []);
        assert_eq!(outdated(&today(), &[advisory(Guest, "0.5.1", None)]), [Guest]);
        assert_eq!(outdated(&today(), &[advisory(Guest, "0.5.0-rc.1", None)]), []);
        assert_eq!(outdated(&today(), &[advisory(Engine, "10.0", Some("qemu"))]), [Engine]);
        assert_eq!(outdated(&today(), &[advisory(Engine, "10.0", Some("firecracker"))]), []);
        let unknown = judge(&Components::default(), &today(), &[advisory(Engine, "1.0", Some("qemu"))]);
        assert_eq!(unknown[2].advisories[0].id, "A-1", "an unknown version is older than the limit");
    }
}
