//! SSH keys of apps for their repositories: a key from the user, or the app's own.
//!
//! An app's own key is derived from the installation's join secret and the app, as passwords of databases are, so that
//! nothing secret is stored and its public half can always be shown. Private keys are texts in OpenSSH's format:
//!
//! ```text
//!   "openssh-key-v1\0" cipher kdf kdf-options count public [ check check kind public seed+public comment 1 2 3 ... ]
//! ```

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use data_encoding::HEXLOWER;
use pandastack_types::AppId;
use pandastack_types::link::LinkKey;
use ring::signature::{Ed25519KeyPair, KeyPair};

const BEGIN: &str = "-----BEGIN OPENSSH PRIVATE KEY-----";
const END: &str = "-----END OPENSSH PRIVATE KEY-----";
const MAGIC: &[u8] = b"openssh-key-v1\0";
const ED25519: &[u8] = b"ssh-ed25519";
/// Padding block of the encrypted section, which is padded even when nothing is encrypted.
const BLOCK_BYTES: usize = 8;
/// Characters of a line of base64.
const LINE_CHARS: usize = 70;

/// Normalizes a private key from a user for git's ssh. The error describes the problem.
pub(crate) fn parse(given: &str) -> Result<String, &'static str> {
    let text = given.replace("\r\n", "\n").trim().to_owned() + "\n";
    let framed = text.starts_with("-----BEGIN ") && text.contains("PRIVATE KEY-----\n");
    if !framed || text.contains('\0') {
        return Err("is not a private key; give the file without `.pub` that ssh-keygen wrote");
    }
    let encrypted = "has a passphrase; create a key without one: ssh-keygen -N ''";
    if text.contains("ENCRYPTED") {
        return Err(encrypted);
    }
    if text.starts_with(BEGIN) {
        let (cipher, _) = read(&text).ok_or("is incomplete or damaged; copy the whole file")?;
        if cipher != b"none" {
            return Err(encrypted);
        }
    }
    Ok(text)
}

/// The line that a repository's host is given, for a private key in OpenSSH's own format.
pub(crate) fn public_of(private: &str) -> Option<String> {
    let (_, public) = read(private)?;
    let kind = take(&mut public.as_slice())?.to_vec();
    Some(format!("{} {} pandastack", String::from_utf8(kind).ok()?, BASE64_STANDARD.encode(public)))
}

/// An app's own key. A rotation of the secret does not change it, because the repository's host knows it.
pub(crate) fn derived(link: &LinkKey, app: &AppId) -> Option<String> {
    let digits = link.derive_lasting("app-deploy-key", &[app.as_str()]);
    let seed = HEXLOWER.decode(digits.as_bytes()).ok()?;
    let pair = Ed25519KeyPair::from_seed_unchecked(&seed).ok()?;
    Some(write(&seed, pair.public_key().as_ref()))
}

/// A key pair as OpenSSH writes it.
fn write(seed: &[u8], public: &[u8]) -> String {
    let blob = [string(ED25519), string(public)].concat();
    // The first 8 bytes hold two equal check values that detect a wrong passphrase; this key has no
    // passphrase.
    let mut private =
        [&[0; 8][..], &blob, &string(&[seed, public].concat()), &string(b"pandastack")].concat();
    private.extend((1..).take(private.len().next_multiple_of(BLOCK_BYTES) - private.len()));
    let head = [MAGIC, &string(b"none"), &string(b"none"), &string(b""), &1_u32.to_be_bytes()].concat();
    let encoded = BASE64_STANDARD.encode([head, string(&blob), string(&private)].concat());
    let lines: Vec<_> = encoded.as_bytes().chunks(LINE_CHARS).map(String::from_utf8_lossy).collect();
    format!("{BEGIN}\n{}\n{END}\n", lines.join("\n"))
}

/// Cipher and public half of a private key.
fn read(private: &str) -> Option<(Vec<u8>, Vec<u8>)> {
    let (_, rest) = private.split_once(BEGIN)?;
    let (body, _) = rest.split_once(END)?;
    let body: String = body.split_whitespace().collect();
    let bytes = BASE64_STANDARD.decode(body).ok()?;
    let mut rest = bytes.strip_prefix(MAGIC)?;
    let cipher = take(&mut rest)?.to_vec();
    let (_kdf, _options) = (take(&mut rest)?, take(&mut rest)?);
    rest = rest.get(4..)?;
    Some((cipher, take(&mut rest)?.to_vec()))
}

fn string(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    [&length.to_be_bytes()[..], bytes].concat()
}

fn take<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, after) = rest.split_first_chunk::<4>()?;
    let (taken, after) = after.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
    *rest = after;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `ssh-keygen -t ed25519 -N x`: only its frame matters, and its cipher.
    const WITH_PASSPHRASE: &[u8] =
        b"openssh-key-v1\0\0\0\0\naes256-ctr\0\0\0\x06bcrypt\0\0\0\0\0\0\0\x01\0\0\0\0";

    #[test]
    fn every_app_has_its_own_deploy_key() {
        let link = LinkKey::new(&[7; 32]).unwrap();
        let key = |app: &str| derived(&link, &app.parse().unwrap()).unwrap();
        assert_eq!(key("a"), key("a"));
        assert_ne!(key("a"), key("b"));
        let public = public_of(&key("a")).unwrap();
        assert!(public.starts_with("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5") && public.ends_with(" pandastack"));
        assert_ne!(Some(public), public_of(&key("b")));
        assert_eq!(parse(&key("a")).unwrap(), key("a"));
    }

    #[test]
    fn deploy_keys_are_validated_by_format() {
        let given = format!("  {}\r\n", write(&[1; 32], &[2; 32]).replace('\n', "\r\n"));
        assert_eq!(parse(&given).unwrap(), write(&[1; 32], &[2; 32]));
        let locked = format!("{BEGIN}\n{}\n{END}\n", BASE64_STANDARD.encode(WITH_PASSPHRASE));
        let older = "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----\n";
        assert_eq!(parse(older).unwrap(), older);
        assert_eq!(public_of(older), None);
        for (bad, part) in [
            ("ssh-ed25519 AAAA me", "without `.pub`"),
            ("", "not a private key"),
            (&locked, "passphrase"),
            ("-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n", "passphrase"),
            (&format!("{BEGIN}\nAAAA\n{END}"), "damaged"),
        ] {
            assert!(parse(bad).unwrap_err().contains(part), "{bad}");
        }
    }
}
