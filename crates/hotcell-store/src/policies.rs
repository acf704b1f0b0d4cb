//! Network policies: of organizations, and of the sandboxes that were created with them.
//!
//! ```text
//!  network_policies   organization ─► text's SHA-256 ─┐
//!                                                     ├─► policy_texts   the text, once
//!  lease_filters      lease ────────► text's SHA-256 ─┘
//! ```
//! A sandbox keeps the policy that it was created with, and a thousand sandboxes keep it as one text: who
//! refers to a text is counted, and the last one to let go of it removes it.

use hotcell_core::network::{LeaseFilterRecord, NetworkPolicyRecord};
use hotcell_types::{LeaseId, OrganizationId, UnixMillis};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{
    dto::broken,
    error::StoreError,
    rows::Snapshot,
    tables::{Table, counter},
    tx::Tx,
};

/// The network policy of an organization, keyed by its id.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "v")]
pub(crate) enum NetworkPolicyDto {
    #[serde(rename = "1")]
    V1 {
        text_sha256: String,
        changed_at: UnixMillis,
    },
}

/// The filter of a sandbox, keyed by its lease.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "v")]
pub(crate) enum LeaseFilterDto {
    #[serde(rename = "1")]
    V1 {
        text_sha256: Option<String>,
        enforces_addresses: bool,
        blocks_encrypted_dns: bool,
    },
}

impl NetworkPolicyDto {
    fn text_sha256(&self) -> &str {
        let Self::V1 { text_sha256, .. } = self;
        text_sha256
    }
}

impl LeaseFilterDto {
    fn text_sha256(&self) -> Option<&str> {
        let Self::V1 { text_sha256, .. } = self;
        text_sha256.as_deref()
    }
}

impl Snapshot<'_> {
    /// The network policy of an organization, if it has one.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn network_policy(
        &self,
        id: &OrganizationId,
    ) -> Result<Option<NetworkPolicyRecord>, StoreError> {
        let dto = self.dto(Table::NetworkPolicies, id.as_str())?;
        let Some(NetworkPolicyDto::V1 {
            text_sha256,
            changed_at,
        }) = dto
        else {
            return Ok(None);
        };
        Ok(Some(NetworkPolicyRecord {
            organization: id.clone(),
            text: self.policy_text(&text_sha256)?,
            changed_at,
        }))
    }

    /// The filter that a lease's sandbox was created with; `None` when it was created without.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn lease_filter(&self, id: &LeaseId) -> Result<Option<LeaseFilterRecord>, StoreError> {
        let dto = self.dto(Table::LeaseFilters, id.as_str())?;
        let Some(LeaseFilterDto::V1 {
            text_sha256,
            enforces_addresses,
            blocks_encrypted_dns,
        }) = dto
        else {
            return Ok(None);
        };
        Ok(Some(LeaseFilterRecord {
            policy: text_sha256
                .map(|sha256| self.policy_text(&sha256))
                .transpose()?,
            enforces_addresses,
            blocks_encrypted_dns,
        }))
    }

    fn policy_text(&self, sha256: &str) -> Result<String, StoreError> {
        let table = Table::PolicyTexts;
        let key = sha256.as_bytes();
        let bytes = self
            .get(table, key)?
            .ok_or_else(|| broken(table, key, "a policy refers to it and it is not there"))?;
        String::from_utf8(bytes).map_err(|_| broken(table, key, "it is no text"))
    }
}

impl Tx<'_> {
    /// Gives an organization this network policy, in place of what it had.
    ///
    /// # Errors
    /// There is no such organization, or the store cannot be read.
    pub fn put_network_policy(&mut self, policy: &NetworkPolicyRecord) -> Result<(), StoreError> {
        self.need_organization(&policy.organization)?;
        self.delete_network_policy(&policy.organization)?;
        let dto = NetworkPolicyDto::V1 {
            text_sha256: self.refer_to(&policy.text)?,
            changed_at: policy.changed_at,
        };
        self.put(Table::NetworkPolicies, policy.organization.as_str(), &dto)
    }

    /// Takes the network policy of an organization away. Whether it had one.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn delete_network_policy(&mut self, id: &OrganizationId) -> Result<bool, StoreError> {
        let old: Option<NetworkPolicyDto> = self.dto(Table::NetworkPolicies, id.as_str())?;
        let Some(old) = old else {
            return Ok(false);
        };
        self.let_go_of(old.text_sha256())?;
        self.remove(Table::NetworkPolicies, id.as_str().as_bytes());
        Ok(true)
    }

    /// Writes down with which filter a lease's sandbox is created, unless that is written down
    /// already: it never changes.
    ///
    /// # Errors
    /// There is no such lease, or the store cannot be read.
    pub fn pin_lease_filter(
        &mut self,
        lease: &LeaseId,
        filter: &LeaseFilterRecord,
    ) -> Result<(), StoreError> {
        if self.has(Table::LeaseFilters, lease.as_str().as_bytes())? {
            return Ok(());
        }
        if self.lease(lease)?.is_none() {
            return Err(StoreError::NotFound {
                what: "lease",
                id: lease.to_string(),
            });
        }
        let dto = LeaseFilterDto::V1 {
            text_sha256: filter
                .policy
                .as_deref()
                .map(|text| self.refer_to(text))
                .transpose()?,
            enforces_addresses: filter.enforces_addresses,
            blocks_encrypted_dns: filter.blocks_encrypted_dns,
        };
        self.put(Table::LeaseFilters, lease.as_str(), &dto)
    }

    /// The lease is over.
    pub(crate) fn delete_lease_filter(&mut self, lease: &LeaseId) -> Result<(), StoreError> {
        let old: Option<LeaseFilterDto> = self.dto(Table::LeaseFilters, lease.as_str())?;
        let Some(old) = old else {
            return Ok(());
        };
        if let Some(sha256) = old.text_sha256() {
            self.let_go_of(sha256)?;
        }
        self.remove(Table::LeaseFilters, lease.as_str().as_bytes());
        Ok(())
    }

    fn refer_to(&mut self, text: &str) -> Result<String, StoreError> {
        let sha256 = hex::encode(Sha256::digest(text.as_bytes()));
        let name = counter::policy_text(&sha256);
        if self.count(&name)? == 0 {
            let text = text.as_bytes().to_vec();
            self.put_bytes(Table::PolicyTexts, sha256.as_bytes(), text)?;
        }
        self.count_up(&name, "references to a policy", u64::MAX)?;
        Ok(sha256)
    }

    fn let_go_of(&mut self, sha256: &str) -> Result<(), StoreError> {
        let name = counter::policy_text(sha256);
        self.count_down(&name)?;
        if self.count(&name)? == 0 {
            self.remove(Table::PolicyTexts, sha256.as_bytes());
        }
        Ok(())
    }
}
