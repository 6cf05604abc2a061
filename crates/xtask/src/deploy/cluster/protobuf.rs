//! Secrets in Kubernetes' protobuf encoding, in which helm stores its releases; everything else it
//! writes as JSON.
//!
//! The envelope is "k8s\0" and a message with the object's bytes in field 2. Of a Secret: metadata
//! 1 (name 1, labels 11), data 2, type 3; maps are entries with key 1 and value 2.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::{Map, Value, json};

const MAGIC: &[u8] = b"k8s\0";

/// A Secret as JSON, or nothing if it is none.
pub(super) fn secret(bytes: &[u8]) -> Option<Value> {
    let envelope = fields(bytes.strip_prefix(MAGIC)?)?;
    let object = fields(one(&envelope, 2)?)?;
    let metadata = fields(one(&object, 1)?)?;
    let name = text(one(&metadata, 1)?);
    let labels = entries(&metadata, 11)?.into_iter().map(|(key, value)| (key, json!(text(value))));
    let data = entries(&object, 2)?
        .into_iter()
        .map(|(key, value)| (key, json!(BASE64_STANDARD.encode(value))));
    let (labels, data) = (labels.collect::<Map<_, _>>(), data.collect::<Map<_, _>>());
    let kind = one(&object, 3).map(text);
    Some(json!({"metadata": {"name": name, "labels": labels}, "data": data, "type": kind}))
}

/// The fields with a length, by number.
fn fields(mut bytes: &[u8]) -> Option<Vec<(u64, &[u8])>> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let tag = number(&mut bytes)?;
        match tag & 7 {
            0 => {
                number(&mut bytes)?;
            }
            2 => {
                let length = usize::try_from(number(&mut bytes)?).ok()?;
                let (value, rest) = bytes.split_at_checked(length)?;
                found.push((tag >> 3, value));
                bytes = rest;
            }
            _ => return None,
        }
    }
    Some(found)
}

fn number(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn one<'a>(fields: &[(u64, &'a [u8])], number: u64) -> Option<&'a [u8]> {
    fields.iter().find(|it| it.0 == number).map(|it| it.1)
}

fn entries<'a>(all: &[(u64, &'a [u8])], number: u64) -> Option<Vec<(String, &'a [u8])>> {
    let entries = all.iter().filter(|it| it.0 == number);
    entries
        .map(|it| {
            let entry = fields(it.1)?;
            Some((text(one(&entry, 1)?), one(&entry, 2).unwrap_or_default()))
        })
        .collect()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_read() {
        let metadata = b"\x0a\x01n\x5a\x06\x0a\x01a\x12\x01b\x38\x05";
        let object =
            [b"\x0a\x0d".as_slice(), metadata, b"\x12\x07\x0a\x01k\x12\x02ab\x1a\x01t"].concat();
        let envelope =
            [MAGIC, b"\x12".as_slice(), &[u8::try_from(object.len()).unwrap()], &object].concat();
        let metadata = json!({"name": "n", "labels": {"a": "b"}});
        let wanted = json!({"metadata": metadata, "data": {"k": "YWI="}, "type": "t"});
        assert_eq!(secret(&envelope), Some(wanted));
        assert_eq!(secret(b"{}"), None);
        assert_eq!(secret(b"k8s\0\x12\xff"), None);
    }
}
