//! `KEY=VALUE` arguments.

use std::collections::BTreeMap;

use anyhow::Result;

use crate::failure::Failure;

/// `KEY=VALUE` arguments as a map.
pub fn pairs(arguments: &[String]) -> Result<Option<BTreeMap<String, String>>> {
    if arguments.is_empty() {
        return Ok(None);
    }
    let split = |(at, text): (usize, &String)| {
        let pair = text.split_once('=').filter(|(key, _)| !key.is_empty());
        let pair = pair.map(|(key, value)| (key.to_owned(), value.to_owned()));
        // The text is not shown: it may be a secret whose name was forgotten.
        pair.ok_or_else(|| {
            Failure::new(format!("invalid KEY=VALUE argument (number {}): expected KEY=VALUE", at + 1)).into()
        })
    };
    arguments.iter().enumerate().map(split).collect::<Result<_>>().map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_split_at_the_first_equals_sign() {
        let map = pairs(&["a=b=c".to_owned(), "d=".to_owned()]).unwrap().unwrap();
        assert_eq!(map["a"], "b=c");
        assert_eq!(map["d"], "");
        assert!(pairs(&["=x".to_owned()]).is_err());
        assert!(pairs(&["x".to_owned()]).is_err());
    }
}
