use super::*;

fn user() -> ServiceUser {
    ServiceUser::numbered(FALLBACK_ID)
}

/// A directory that every user can traverse; `None` if the test is not root.
fn passable() -> Option<tempfile::TempDir> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can give files away");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o711)).unwrap();
    Some(dir)
}

fn owner(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().uid()
}

#[test]
fn handing_over_a_root_installation_changes_only_its_files() {
    let Some(root) = passable() else { return };
    let (dir, beside) = (root.path().join("control"), root.path().join("system"));
    fs::create_dir_all(dir.join("deep")).unwrap();
    for file in [&dir.join("control.db"), &dir.join("deep/file"), &beside] {
        fs::write(file, "x").unwrap();
    }
    symlink(&beside, dir.join("link")).unwrap();
    fs::hard_link(&beside, dir.join("second-name")).unwrap();
    let secret = root.path().join("link-secret");
    fs::OpenOptions::new().create_new(true).write(true).mode(0o600).open(&secret).unwrap();
    let directories = vec![dir.clone(), root.path().join("new")];
    let needs = Needs { directories, secret: Some(secret.clone()), ..Needs::default() };
    user().hand_over(&needs).unwrap();
    for own in [&dir, &dir.join("control.db"), &dir.join("deep/file"), &root.path().join("new")] {
        assert_eq!(owner(own), FALLBACK_ID, "{}", own.display());
    }
    assert_eq!((owner(&beside), owner(&dir.join("link"))), (0, 0));
    let found = fs::metadata(&secret).unwrap();
    assert_eq!((found.uid(), found.gid(), found.mode() & 0o777), (0, FALLBACK_ID, 0o640));
    // The user's own files may be links to anywhere by now, so they are not followed.
    fs::write(dir.join("later"), "x").unwrap();
    user().hand_over(&needs).unwrap();
    assert_eq!(owner(&dir.join("later")), 0);
    // Once root has worked there, all of it is handed over anew.
    reclaim(&needs.directories);
    user().hand_over(&needs).unwrap();
    assert_eq!(owner(&dir.join("later")), FALLBACK_ID);
}

#[test]
fn another_user_takes_over_everything_of_the_one_before() {
    let Some(root) = passable() else { return };
    let dir = root.path().join("control");
    fs::create_dir_all(dir.join("deep")).unwrap();
    fs::write(dir.join("deep/control.db"), "x").unwrap();
    let needs = Needs { directories: vec![dir.clone()], ..Needs::default() };
    ServiceUser::numbered(4711).hand_over(&needs).unwrap();
    assert!(user().obstacle(&needs).unwrap().contains("chown -R"));
    // So it runs as root once.
    reclaim(&needs.directories);
    assert_eq!(user().obstacle(&needs), None);
    user().hand_over(&needs).unwrap();
    for own in [&dir, &dir.join("deep"), &dir.join("deep/control.db")] {
        assert_eq!(owner(own), FALLBACK_ID, "{}", own.display());
    }
}

#[test]
fn a_directory_that_the_operator_chose_is_not_taken_with_files_of_others() {
    let Some(root) = passable() else { return };
    let dir = root.path().join("backups");
    fs::create_dir(&dir).unwrap();
    let needs = Needs { directories: vec![dir.clone()], chosen: vec![dir.clone()], ..Needs::default() };
    assert_eq!(user().obstacle(&needs), None);
    fs::write(dir.join("etc.tar"), "x").unwrap();
    assert!(user().obstacle(&needs).unwrap().contains("has files of root"));
}

#[test]
fn a_role_stays_root_when_its_user_lacks_access() {
    let Some(root) = passable() else { return };
    let reason = |needs: &Needs| user().obstacle(needs).unwrap_or_default();
    let closed = root.path().join("closed");
    make_directory(&closed, 0o700).unwrap();
    let key = root.path().join("key.pem");
    fs::write(&key, "x").unwrap();
    fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    let one = |path: PathBuf| vec![path];
    assert_eq!(reason(&Needs { directories: one(closed.clone()), ..Needs::default() }), "");
    let below = Needs { directories: one(closed.join("data/control")), ..Needs::default() };
    assert!(reason(&below).contains("chmod o+x"), "{}", reason(&below));
    let unreadable = Needs { read: one(key.clone()), ..Needs::default() };
    assert!(reason(&unreadable).contains("chmod g+r"), "{}", reason(&unreadable));
    fs::set_permissions(&key, Permissions::from_mode(0o644)).unwrap();
    assert_eq!(reason(&unreadable), "");
    let log = Needs { logs: one(root.path().join("access.log")), ..Needs::default() };
    assert!(reason(&log).contains("cannot rotate"), "{}", reason(&log));
    assert_eq!(reason(&Needs { logs: one("/dev/null".into()), ..Needs::default() }), "");
}

#[test]
fn an_unmapped_service_user_is_detected() {
    assert!(is_mapped("         0          0 4294967295\n", FALLBACK_ID));
    assert!(!is_mapped("0 100000 65536\n", FALLBACK_ID));
    assert!(is_mapped("0 100000 65536\n", 999) && is_mapped("", 999));
}

#[test]
fn run_as_accepts_a_user_or_root() {
    let Some(_root) = passable() else { return };
    assert_eq!(ServiceUser::resolve(Some("root")).unwrap(), None);
    assert_eq!(ServiceUser::resolve(Some("0")).unwrap(), None);
    assert_eq!(ServiceUser::resolve(Some("4711")).unwrap().unwrap().ids(), (4711, 4711));
    let error = ServiceUser::resolve(Some("no-such-user")).unwrap_err();
    assert_eq!(error.to_string(), "user `no-such-user` of --run-as not found");
}
