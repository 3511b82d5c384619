//! Settings from a source's `pandastack.toml`, and which of them apply.
//!
//! | | wins over |
//! |---|---|
//! | settings and variables of the app, as users set them | everything |
//! | the file in the app's directory; without one, a file at the root of the source that names this directory | the rest |
//! | an app's initial settings, detected values | nothing |
//!
//! Commands and the kind of app are left to `pandastack-detect`, by the same rule.

use pandastack_detect::{Manifest, Undetected};
use pandastack_store::apps::record::{AppSpec, EnvEntry, SourceConfig};
use pandastack_store::clock::now;
use pandastack_types::Result;

use crate::check;

/// Reads the settings of a configuration file. They have the same limits as an app's own settings.
pub(crate) fn read_config(manifest: Manifest, app: &AppSpec) -> Result<SourceConfig> {
    manifest.port.map_or(Ok(()), check::port)?;
    manifest.health_path.as_deref().map_or(Ok(()), check::health_path)?;
    // Both together are what a machine gets.
    let mut all = AppSpec { env: app.env.clone(), ..AppSpec::default() };
    for (key, value) in [&manifest.env, &manifest.build_env, &manifest.run_env].into_iter().flatten() {
        let entry = EnvEntry {
            value: value.clone(),
            secret: false,
            scope: Default::default(),
            stage: Default::default(),
            updated_at: now(),
        };
        check::put_env(&mut all, key, entry)?;
    }
    let Manifest { port, health_path, env, build_env, run_env, .. } = manifest;
    Ok(SourceConfig { port, health_path, env, build_env, run_env })
}

/// The location of an app within its source.
#[derive(Debug, PartialEq)]
pub(crate) struct AppLocation {
    /// The directory; empty at the root.
    pub(crate) directory: String,
    /// Whether the configuration file at the root of the source names this directory.
    pub(crate) is_named_by_root: bool,
}

impl AppLocation {
    /// By the app's settings and the file at the root of its source.
    pub(crate) fn of(
        spec: &AppSpec,
        root: Option<Result<Manifest, Undetected>>,
    ) -> Result<Self, LocationError> {
        let plain = |path: &str| {
            path.split('/').filter(|part| !matches!(*part, "" | ".")).collect::<Vec<_>>().join("/")
        };
        let own = spec.root_directory.as_deref().map(plain);
        let named = match root {
            // The file of another app, for all that is known.
            Some(Err(_)) if spec.said.root_directory => None,
            Some(read) => read?.root_directory,
            None => None,
        };
        let named = named.map(|named| check::root_directory(&named).map(|()| plain(&named))).transpose()?;
        let directory = match (&own, &named) {
            (Some(own), _) if spec.said.root_directory => own.clone(),
            (own, named) => named.clone().or_else(|| own.clone()).unwrap_or_default(),
        };
        Ok(Self { is_named_by_root: named.as_ref() == Some(&directory), directory })
    }
}

/// Why the location of an app is unknown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LocationError {
    /// The file at the root cannot be read.
    #[error(transparent)]
    Unreadable(#[from] Undetected),
    /// The file names a path that is not a directory of the source.
    #[error(transparent)]
    Outside(#[from] pandastack_types::Error),
}

#[cfg(test)]
mod tests {
    use pandastack_types::api::EnvStage;

    use super::*;
    use pandastack_store::apps::record::{AppRecord, ExplicitSettings};

    fn read(text: &str) -> Manifest {
        Manifest::parse(text).unwrap()
    }

    fn app(spec: AppSpec) -> AppRecord {
        AppRecord::new(pandastack_types::WorkspaceId::default_workspace(), "a".to_owned(), spec, now())
    }

    #[test]
    fn the_source_config_applies_unless_a_setting_is_explicit() {
        let says = |text: &str| read_config(read(text), &AppSpec::default());
        let file = says("[app]\nport = 3000\nhealth_path = \"/up\"\n[env]\nMODE = \"fast\"\n").unwrap();
        assert_eq!(file.env["MODE"], "fast");
        let begun = file.applied(&app(AppSpec::default())).spec;
        assert_eq!((begun.port, begun.health_path.as_str()), (3000, "/up"));
        let said = ExplicitSettings { port: true, health_path: true, ..ExplicitSettings::default() };
        let said = file.applied(&app(AppSpec { said, ..AppSpec::default() })).spec;
        assert_eq!((said.port, said.health_path.as_str()), (8080, "/"));
        let silent = SourceConfig::default().applied(&app(AppSpec { port: 5000, ..AppSpec::default() })).spec;
        assert_eq!(silent.port, 5000);
        for (bad, word) in [
            ("[app]\nport = 0\n", "port"),
            ("[app]\nhealth_path = \"up\"\n", "health_path"),
            ("[env]\n\"A-B\" = \"x\"\n", "A-B"),
        ] {
            assert!(says(bad).unwrap_err().message.contains(word), "{bad}");
        }
    }

    #[test]
    fn variables_of_one_stage_are_not_set_in_the_other() {
        let text =
            "[env]\nMODE = \"fast\"\n[env.build]\nMODE = \"small\"\nCACHE = 1\n[env.run]\nWORKERS = 2\n";
        let says = read_config(read(text), &AppSpec::default()).unwrap();
        let values = |stage| says.env_values(stage).into_iter().collect::<Vec<_>>();
        let pairs = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect::<Vec<_>>()
        };
        assert_eq!(values(EnvStage::Build), pairs(&[("CACHE", "1"), ("MODE", "small")]));
        assert_eq!(values(EnvStage::Run), pairs(&[("MODE", "fast"), ("WORKERS", "2")]));
        let bad = read_config(read("[env.run]\n\"A-B\" = 1\n"), &AppSpec::default());
        assert!(bad.unwrap_err().message.contains("A-B"));
        let old: SourceConfig = serde_json::from_str(r#"{"env":{"A":"b"}}"#).unwrap();
        assert_eq!(old.env_values(EnvStage::Run)["A"], "b", "written before there were stages");
    }

    #[test]
    fn the_apps_own_root_directory_overrides_the_source_config() {
        let spec = |own: Option<&str>, is_said| AppSpec {
            root_directory: own.map(str::to_owned),
            said: ExplicitSettings { root_directory: is_said, ..ExplicitSettings::default() },
            ..AppSpec::default()
        };
        let check = |spec: &AppSpec, root: Option<&str>, directory: &str, is_named_by_root| {
            let root = root.map(|named| Ok(read(&format!("[app]\nroot_directory = {named:?}\n"))));
            let expect = AppLocation { directory: directory.to_owned(), is_named_by_root };
            assert_eq!(AppLocation::of(spec, root).unwrap(), expect);
        };
        check(&spec(None, false), None, "", false);
        check(&spec(None, false), Some("./web/"), "web", true);
        check(&spec(Some("web"), true), Some("site"), "web", false);
        check(&spec(Some("/web/"), true), Some("web"), "web", true);
        check(&spec(Some("web"), false), Some("site"), "site", true);
        check(&spec(Some("web"), false), None, "web", false);
        assert!(
            AppLocation::of(&spec(None, false), Some(Ok(read("[app]\nroot_directory = \"../x\"\n"))))
                .is_err()
        );
        let broken = || Some(Err(Undetected::UnknownFramework("x".to_owned())));
        assert!(AppLocation::of(&spec(None, false), broken()).is_err());
        assert_eq!(AppLocation::of(&spec(Some("web"), true), broken()).unwrap().directory, "web");
    }
}
