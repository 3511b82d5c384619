//! The person who signed in.

use serde_json::Value;

use crate::id_token::Claims;

/// Longest stored text of a claim.
const TEXT_BYTES_MAX: usize = 256;
/// Groups of a person beyond these are ignored.
const GROUPS_MAX: usize = 1000;

/// A person, as the provider describes them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Person {
    /// The provider.
    pub issuer: String,
    /// The provider's name for the person, which never changes.
    pub subject: String,
    /// Email address in lower case, if the provider says that it is verified.
    pub email: Option<String>,
    /// Name to show.
    pub name: Option<String>,
    /// Groups of the person.
    pub groups: Vec<String>,
}

impl Person {
    /// Reads verified claims. `None` if the subject is too long to store.
    pub(crate) fn from_claims(issuer: &str, claims: &Claims, groups_claim: &str) -> Option<Self> {
        let text = |name: &str| claims.get(name).and_then(Value::as_str).map(str::trim);
        let kept = |text: &&str| !text.is_empty() && text.len() <= TEXT_BYTES_MAX;
        let email = text("email").filter(|_| is_verified(claims)).filter(kept);
        let name = text("name").or_else(|| text("preferred_username")).filter(kept);
        Some(Self {
            issuer: issuer.to_owned(),
            subject: text("sub").filter(kept)?.to_owned(),
            email: email.filter(|email| email.contains('@')).map(str::to_lowercase),
            name: name.map(str::to_owned),
            groups: groups(claims, groups_claim),
        })
    }

    /// Label of the person in the audit log. Not the display name: users can choose it, and could choose
    /// someone else's.
    pub fn label(&self) -> &str {
        self.email.as_deref().unwrap_or(&self.subject)
    }
}

/// Some providers send the flag as text.
fn is_verified(claims: &Claims) -> bool {
    match claims.get("email_verified") {
        Some(Value::Bool(verified)) => *verified,
        Some(Value::String(text)) => text == "true",
        _ => false,
    }
}

/// The value of a claim, or of one within others: `realm_access.roles`.
pub(crate) fn claim<'a>(claims: &'a Claims, name: &str) -> Option<&'a Value> {
    claims.get(name).or_else(|| {
        let (outer, inner) = name.split_once('.')?;
        claim(claims.get(outer)?.as_object()?, inner)
    })
}

fn groups(claims: &Claims, name: &str) -> Vec<String> {
    match claim(claims, name) {
        Some(Value::String(one)) => vec![one.clone()],
        Some(Value::Array(all)) => {
            all.iter().filter_map(Value::as_str).take(GROUPS_MAX).map(str::to_owned).collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn person(claims: Value) -> Option<Person> {
        Person::from_claims("https://i", claims.as_object().unwrap(), "realm_access.roles")
    }

    #[test]
    fn only_a_verified_email_is_used() {
        for (verified, kept) in [
            (json!(true), true),
            (json!("true"), true),
            (json!(false), false),
            (json!("false"), false),
            (json!(1), false),
            (Value::Null, false),
        ] {
            let claims = json!({"sub": "s", "email": "Ada@Example.com", "email_verified": verified});
            let email = person(claims).unwrap().email;
            assert_eq!(email, kept.then(|| "ada@example.com".to_owned()), "{verified}");
        }
        let odd = json!({"sub": "s", "email": "no address", "email_verified": true});
        assert_eq!(person(odd).unwrap().email, None);
    }

    #[test]
    fn group_claims_are_found_by_name_and_by_path() {
        let of = |claims: Value| person(claims).unwrap().groups;
        assert_eq!(of(json!({"sub": "s", "realm_access": {"roles": ["a", 1, "b"]}})), ["a", "b"]);
        assert_eq!(of(json!({"sub": "s", "realm_access.roles": "a"})), ["a"]);
        assert!(of(json!({"sub": "s", "realm_access": "a"})).is_empty());
        assert!(person(json!({"sub": "x".repeat(257)})).is_none());
        assert_eq!(person(json!({"sub": "s", "name": "Ada"})).unwrap().label(), "s");
    }
}
