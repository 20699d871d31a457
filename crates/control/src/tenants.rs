//! Who may use the switch, and how much of it: tokens, tenants and their quotas.

use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use subtle::ConstantTimeEq;

use crate::{ControlError, ErrorCode};

/// Shorter tokens can be guessed.
pub const TOKEN_LENGTH_MIN: usize = 16;

/// One party with its share of the switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// Shown in status and errors.
    pub name: String,
    /// Most slot memory that all its jobs together may hold, in bytes.
    pub slot_memory_bytes_max: u64,
    /// Most jobs at a time, waiting ones included.
    pub job_count_max: u32,
    /// May drain the switch and inspect other tenants' jobs.
    pub operator: bool,
}

/// The tenant file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TenantFileError {
    /// The file cannot be read.
    #[error("cannot read the tenant file {path}: {source}")]
    Read {
        /// As given.
        path: String,
        /// From the system.
        source: std::io::Error,
    },
    /// Not TOML, or not the expected keys.
    #[error("the tenant file is not valid: {0}")]
    Syntax(#[from] toml::de::Error),
    /// A token is too short to be a secret.
    #[error(
        "tenant `{name}`: the token has {length} characters and needs at least {TOKEN_LENGTH_MIN}; \
         make one with `openssl rand -hex 16`"
    )]
    TokenTooShort {
        /// Tenant.
        name: String,
        /// Characters.
        length: usize,
    },
    /// Two tenants cannot be told apart.
    #[error("tenants `{first}` and `{second}` have the same {what}; give each its own")]
    Twice {
        /// Tenant.
        first: String,
        /// Tenant.
        second: String,
        /// `name` or `token`.
        what: &'static str,
    },
    /// A file without tenants would lock everyone out.
    #[error("the tenant file names no tenant; add a [[tenant]] table with `name` and `token`")]
    Empty,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TenantFile {
    #[serde(default)]
    tenant: Vec<TenantEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TenantEntry {
    name: String,
    token: String,
    slot_memory_bytes_max: Option<u64>,
    job_count_max: Option<u32>,
    #[serde(default)]
    operator: bool,
}

/// Maps bearer tokens to tenants.
#[derive(Clone)]
pub struct TenantTable {
    entries: Vec<(String, Arc<Tenant>)>,
    open: Option<Arc<Tenant>>,
}

impl TenantTable {
    /// No tokens: everybody is the tenant `default`, without quota.
    pub fn open() -> Self {
        let tenant =
            Tenant { name: "default".into(), slot_memory_bytes_max: u64::MAX, job_count_max: u32::MAX, operator: true };
        Self { entries: Vec::new(), open: Some(Arc::new(tenant)) }
    }

    /// Reads a tenant file, see [`TenantTable::parse`].
    ///
    /// # Errors
    /// [`TenantFileError`].
    pub fn read(path: &Path) -> Result<Self, TenantFileError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| TenantFileError::Read { path: path.display().to_string(), source })?;
        Self::parse(&text)
    }

    /// Reads TOML: one `[[tenant]]` table each with `name`, `token`, and optionally `slot_memory_bytes_max`,
    /// `job_count_max` and `operator`.
    ///
    /// # Errors
    /// [`TenantFileError`].
    pub fn parse(text: &str) -> Result<Self, TenantFileError> {
        let file: TenantFile = toml::from_str(text)?;
        check_entries(&file.tenant)?;
        Ok(Self { entries: file.tenant.into_iter().map(TenantEntry::split).collect(), open: None })
    }

    /// Whether callers need a token.
    pub fn needs_token(&self) -> bool {
        self.open.is_none()
    }

    /// The tenant of an `authorization` header value.
    ///
    /// # Errors
    /// [`ErrorCode::Unauthenticated`] for a missing, malformed or unknown token.
    pub fn authenticate(&self, authorization: Option<&str>) -> Result<Arc<Tenant>, ControlError> {
        if let Some(tenant) = &self.open {
            return Ok(tenant.clone());
        }
        let token = authorization.and_then(bearer_token).ok_or_else(missing_token)?;
        self.find(token).ok_or_else(unknown_token)
    }

    /// Compares with every entry and never stops early, so that the time taken tells nothing about the tokens.
    fn find(&self, token: &str) -> Option<Arc<Tenant>> {
        let mut found = None;
        for (candidate, tenant) in &self.entries {
            if bool::from(candidate.as_bytes().ct_eq(token.as_bytes())) {
                found = Some(tenant.clone());
            }
        }
        found
    }
}

impl TenantEntry {
    fn split(self) -> (String, Arc<Tenant>) {
        let tenant = Tenant {
            name: self.name,
            slot_memory_bytes_max: self.slot_memory_bytes_max.unwrap_or(u64::MAX),
            job_count_max: self.job_count_max.unwrap_or(u32::MAX),
            operator: self.operator,
        };
        (self.token, Arc::new(tenant))
    }
}

fn check_entries(entries: &[TenantEntry]) -> Result<(), TenantFileError> {
    if entries.is_empty() {
        return Err(TenantFileError::Empty);
    }
    for (index, entry) in entries.iter().enumerate() {
        if entry.token.len() < TOKEN_LENGTH_MIN {
            return Err(TenantFileError::TokenTooShort { name: entry.name.clone(), length: entry.token.len() });
        }
        for earlier in &entries[..index] {
            check_different(earlier, entry)?;
        }
    }
    Ok(())
}

fn check_different(first: &TenantEntry, second: &TenantEntry) -> Result<(), TenantFileError> {
    let what = if first.name == second.name {
        "name"
    } else if first.token == second.token {
        "token"
    } else {
        return Ok(());
    };
    Err(TenantFileError::Twice { first: first.name.clone(), second: second.name.clone(), what })
}

fn bearer_token(header: &str) -> Option<&str> {
    let (scheme, token) = header.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

fn missing_token() -> ControlError {
    ControlError::new(
        ErrorCode::Unauthenticated,
        "this switch needs a token and none was sent",
        "Set the token that the switch's operator gave you",
    )
}

fn unknown_token() -> ControlError {
    ControlError::new(
        ErrorCode::Unauthenticated,
        "the switch does not know this token",
        "Check it for missing characters, or ask the switch's operator for a new one",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
        [[tenant]]
        name = "vision"
        token = "0123456789abcdef"
        slot_memory_bytes_max = 1024
        job_count_max = 2
        [[tenant]]
        name = "ops"
        token = "fedcba9876543210"
        operator = true
    "#;

    #[test]
    fn a_token_gives_its_tenant_and_quota() {
        let table = TenantTable::parse(FILE).unwrap();
        let vision = table.authenticate(Some("Bearer 0123456789abcdef")).unwrap();
        assert_eq!((vision.name.as_str(), vision.slot_memory_bytes_max, vision.job_count_max), ("vision", 1024, 2));
        assert!(!vision.operator);
        assert!(table.authenticate(Some("bearer fedcba9876543210")).unwrap().operator);
    }

    #[test]
    fn wrong_missing_and_malformed_tokens_are_refused() {
        let table = TenantTable::parse(FILE).unwrap();
        for header in
            [None, Some(""), Some("Basic 0123456789abcdef"), Some("Bearer 0123456789abcdeX"), Some("Bearer 0123")]
        {
            let error = table.authenticate(header).unwrap_err();
            assert_eq!(error.code, ErrorCode::Unauthenticated, "{header:?}");
            assert!(!error.hint.is_empty());
        }
    }

    #[test]
    fn files_that_would_lock_out_or_mix_up_are_refused() {
        let twice = "[[tenant]]\nname='a'\ntoken='0123456789abcdef'\n[[tenant]]\nname='b'\ntoken='0123456789abcdef'";
        assert!(matches!(TenantTable::parse(twice), Err(TenantFileError::Twice { what: "token", .. })));
        assert!(matches!(TenantTable::parse(""), Err(TenantFileError::Empty)));
        let short = "[[tenant]]\nname='a'\ntoken='abc'";
        assert!(matches!(TenantTable::parse(short), Err(TenantFileError::TokenTooShort { length: 3, .. })));
        let typo = "[[tenant]]\nname='a'\ntoken='0123456789abcdef'\nqouta=1";
        assert!(matches!(TenantTable::parse(typo), Err(TenantFileError::Syntax(_))));
    }

    #[test]
    fn an_open_switch_needs_no_token() {
        assert_eq!(TenantTable::open().authenticate(None).unwrap().name, "default");
    }
}
