//! Bounds-checked writing and reading of the little-endian fields of a message.

use super::{
    FILTER_BYTES_MAX, Identity, List, Lockdown, MAGIC, Malformed, Match, RULES_MAX, Rule, Text, VERSION,
};

pub(super) struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl<'a> Writer<'a> {
    pub(super) fn start(out: &'a mut [u8]) -> Result<Self, Malformed> {
        let mut writer = Self { out, at: 0 };
        writer.u32(MAGIC)?;
        writer.u16(VERSION)?;
        Ok(writer)
    }

    pub(super) fn len(&self) -> usize {
        self.at
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Malformed> {
        let end = self.at.checked_add(bytes.len()).ok_or(Malformed)?;
        self.out.get_mut(self.at..end).ok_or(Malformed)?.copy_from_slice(bytes);
        self.at = end;
        Ok(())
    }

    pub(super) fn u8(&mut self, value: u8) -> Result<(), Malformed> {
        self.bytes(&[value])
    }

    pub(super) fn u16(&mut self, value: u16) -> Result<(), Malformed> {
        self.bytes(&value.to_le_bytes())
    }

    pub(super) fn u32(&mut self, value: u32) -> Result<(), Malformed> {
        self.bytes(&value.to_le_bytes())
    }

    pub(super) fn u64(&mut self, value: u64) -> Result<(), Malformed> {
        self.bytes(&value.to_le_bytes())
    }

    pub(super) fn text<const N: usize>(&mut self, text: &Text<N>) -> Result<(), Malformed> {
        self.u8(u8::try_from(text.as_bytes().len()).map_err(|_| Malformed)?)?;
        self.bytes(text.as_bytes())
    }

    pub(super) fn identity(&mut self, identity: Option<Identity>) -> Result<(), Malformed> {
        let Some(Identity { uid, gid }) = identity else { return self.u8(0) };
        self.u8(1)?;
        self.u32(uid)?;
        self.u32(gid)
    }

    pub(super) fn lockdown(&mut self, lockdown: &Lockdown<'_>) -> Result<(), Malformed> {
        self.text(&lockdown.root)?;
        self.u16(u16::try_from(lockdown.filter.len()).map_err(|_| Malformed)?)?;
        self.bytes(lockdown.filter)
    }

    pub(super) fn rule(&mut self, rule: &Rule) -> Result<(), Malformed> {
        self.u8(u8::from(rule.required))?;
        match &rule.matches {
            Match::File { device, inode } => {
                self.u8(1)?;
                self.u64(*device)?;
                self.u64(*inode)
            }
            Match::Listener(path) => {
                self.u8(2)?;
                self.text(path)
            }
            Match::Accepted(path) => {
                self.u8(3)?;
                self.text(path)
            }
            Match::Tap => self.u8(4),
        }
    }
}

pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn start(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Self { rest: bytes };
        if reader.u32()? != MAGIC || reader.u16()? != VERSION {
            return Err(Malformed);
        }
        Ok(reader)
    }

    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(Malformed)?;
        self.rest = rest;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.take(N)?.try_into().map_err(|_| Malformed)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub(super) fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(super) fn text<const N: usize>(&mut self) -> Result<Text<N>, Malformed> {
        let len = self.u8()?;
        Text::new(self.take(usize::from(len))?)
    }

    pub(super) fn identity(&mut self) -> Result<Option<Identity>, Malformed> {
        match self.u8()? {
            0 => Ok(None),
            1 => Ok(Some(Identity { uid: self.u32()?, gid: self.u32()? })),
            _ => Err(Malformed),
        }
    }

    pub(super) fn lockdown(&mut self) -> Result<Lockdown<'a>, Malformed> {
        let root = self.text()?;
        let len = usize::from(self.u16()?);
        if len > FILTER_BYTES_MAX || len % 8 != 0 {
            return Err(Malformed);
        }
        Ok(Lockdown { root, filter: self.take(len)? })
    }

    pub(super) fn rules(&mut self) -> Result<List<Rule, RULES_MAX>, Malformed> {
        let mut rules = List::EMPTY;
        for _ in 0..self.u8()? {
            rules.push(self.rule()?)?;
        }
        Ok(rules)
    }

    pub(super) fn rule(&mut self) -> Result<Rule, Malformed> {
        let required = self.u8()? != 0;
        let matches = match self.u8()? {
            1 => Match::File { device: self.u64()?, inode: self.u64()? },
            2 => Match::Listener(self.text()?),
            3 => Match::Accepted(self.text()?),
            4 => Match::Tap,
            _ => return Err(Malformed),
        };
        Ok(Rule { matches, required })
    }

    pub(super) fn finish(self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed) }
    }
}
