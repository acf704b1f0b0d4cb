//! What is there: listings of tables and of everything in one.

use std::{collections::BTreeMap, net::IpAddr};

use hotcell_egress::{
    firewall::FirewallError,
    report::{Difference, TableReport},
    ruleset::{ObjectName, Ruleset},
};
use nftnl::nftnl_sys::{self as sys, libc};

use super::Tables;
use crate::{
    decode::{self, Elements},
    encode::{Item, set_object},
    object::{self, c_string},
};

impl Tables {
    /// The tables of our family whose names begin with this. Names that cannot be ours are left out.
    pub(crate) fn list(&mut self, prefix: &str) -> Result<Vec<ObjectName>, FirewallError> {
        let mut found: Vec<ObjectName> = Vec::new();
        self.netlink.dump(
            "list tables",
            libc::NFT_MSG_GETTABLE,
            |_| {},
            &mut found,
            Vec::clear,
            |found, message| {
                if let Some(name) = decode::table(message)
                    && name.starts_with(prefix)
                    && let Ok(name) = name.parse()
                {
                    found.push(name);
                }
            },
        )?;
        found.sort_unstable();
        Ok(found)
    }

    /// What is there; `None` when the table is not.
    pub(crate) fn report(
        &mut self,
        table: &ObjectName,
    ) -> Result<Option<TableReport>, FirewallError> {
        if !self.has_table(table)? {
            return Ok(None);
        }
        let mut chains = self.chains(table)?;
        for (name, rules) in self.rules(table, None)? {
            if let Some(chain) = chains.get_mut(&name) {
                chain.rules.extend(rules);
            }
        }
        let mut sets = self.sets(table)?;
        for (name, report) in &mut sets {
            // A set that hotcell cannot have made is reported without its elements.
            if let Ok(name) = name.parse() {
                self.elements(table, &name)?.fill(report);
            }
        }
        Ok(Some(TableReport { chains, sets }))
    }

    pub(crate) fn differences(
        &mut self,
        ruleset: &Ruleset,
    ) -> Result<Vec<Difference>, FirewallError> {
        let there = self.report(&ruleset.table)?;
        Ok(decode::expected(ruleset).differences(there.as_ref()))
    }

    pub(super) fn has_table(&mut self, table: &ObjectName) -> Result<bool, FirewallError> {
        let built = object::Table::new();
        let name = c_string(table.as_str());
        // SAFETY: the object is alive, and libnftnl copies the string.
        unsafe {
            sys::nftnl_table_set_str(built.as_ptr(), sys::NFTNL_TABLE_NAME as u16, name.as_ptr());
        }
        let payload = |header| {
            // SAFETY: both are alive, and the header has room for the attributes.
            unsafe { sys::nftnl_table_nlmsg_build_payload(header, built.as_ptr()) };
        };
        let doing = "look for the table";
        match self
            .netlink
            .ask(doing, libc::NFT_MSG_GETTABLE, 0, payload, |_| {})
        {
            Ok(()) => Ok(true),
            Err(FirewallError::Refused { source, .. })
                if source.raw_os_error() == Some(libc::ENOENT) =>
            {
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    pub(super) fn chains(
        &mut self,
        table: &ObjectName,
    ) -> Result<BTreeMap<String, hotcell_egress::report::ChainReport>, FirewallError> {
        let mut found = BTreeMap::new();
        self.netlink.dump(
            "list chains",
            libc::NFT_MSG_GETCHAIN,
            |_| {},
            &mut found,
            BTreeMap::clear,
            |found, message| {
                if let Some((of, name, report)) = decode::chain(message)
                    && of == table.as_str()
                {
                    found.insert(name, report);
                }
            },
        )?;
        Ok(found)
    }

    pub(super) fn rules(
        &mut self,
        table: &ObjectName,
        chain: Option<&ObjectName>,
    ) -> Result<BTreeMap<String, Vec<String>>, FirewallError> {
        let filter = object::Rule::new();
        let name = c_string(table.as_str());
        let chain = chain.map(|chain| c_string(chain.as_str()));
        // SAFETY: the object is alive, and libnftnl copies the strings.
        unsafe {
            sys::nftnl_rule_set_str(filter.as_ptr(), sys::NFTNL_RULE_TABLE as u16, name.as_ptr());
            if let Some(chain) = &chain {
                sys::nftnl_rule_set_str(
                    filter.as_ptr(),
                    sys::NFTNL_RULE_CHAIN as u16,
                    chain.as_ptr(),
                );
            }
        }
        let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
        self.netlink.dump(
            "list rules",
            libc::NFT_MSG_GETRULE,
            |header| {
                // SAFETY: both are alive, and the header has room for the attributes.
                unsafe { sys::nftnl_rule_nlmsg_build_payload(header, filter.as_ptr()) };
            },
            &mut found,
            BTreeMap::clear,
            |found, message| {
                if let Some((of, chain, rendering)) = decode::rule(message)
                    && of == table.as_str()
                {
                    found.entry(chain).or_default().push(rendering);
                }
            },
        )?;
        Ok(found)
    }

    pub(super) fn sets(
        &mut self,
        table: &ObjectName,
    ) -> Result<BTreeMap<String, hotcell_egress::report::SetReport>, FirewallError> {
        let filter = object::Set::new();
        let name = c_string(table.as_str());
        // SAFETY: the object is alive, and libnftnl copies the string.
        unsafe {
            sys::nftnl_set_set_str(filter.as_ptr(), sys::NFTNL_SET_TABLE as u16, name.as_ptr())
        };
        let mut found = BTreeMap::new();
        self.netlink.dump(
            "list sets",
            libc::NFT_MSG_GETSET,
            |header| {
                // SAFETY: both are alive, and the header has room for the attributes.
                unsafe { sys::nftnl_set_nlmsg_build_payload(header, filter.as_ptr()) };
            },
            &mut found,
            BTreeMap::clear,
            |found, message| {
                if let Some((of, name, report)) = decode::set(message)
                    && of == table.as_str()
                {
                    found.insert(name, report);
                }
            },
        )?;
        Ok(found)
    }

    pub(super) fn elements(
        &mut self,
        table: &ObjectName,
        set: &ObjectName,
    ) -> Result<Elements, FirewallError> {
        let filter = set_object(table, set);
        let mut found = Elements::default();
        self.netlink.dump(
            "list elements",
            libc::NFT_MSG_GETSETELEM,
            |header| {
                // SAFETY: both are alive, and the header has room for the attributes.
                unsafe { sys::nftnl_set_elems_nlmsg_build_payload(header, filter.as_ptr()) };
            },
            &mut found,
            Elements::clear,
            Elements::add,
        )?;
        Ok(found)
    }

    /// Which of these addresses are in the set, and for how long yet.
    pub(super) fn find(
        &mut self,
        table: &ObjectName,
        set: &ObjectName,
        addresses: &[IpAddr],
    ) -> Result<BTreeMap<IpAddr, u64>, FirewallError> {
        const KEYS_PER_QUESTION: usize = 256;
        let mut found = BTreeMap::new();
        for some in addresses.chunks(KEYS_PER_QUESTION) {
            let question = set_object(table, set);
            for address in some {
                Item::address(*address).add_to(&question);
            }
            let payload = |header| {
                // SAFETY: both are alive; the keys of one question fit into its room.
                unsafe { sys::nftnl_set_elems_nlmsg_build_payload(header, question.as_ptr()) };
            };
            let mut elements = Elements::default();
            let doing = "find addresses";
            let kind = libc::NFT_MSG_GETSETELEM;
            let asked = self
                .netlink
                .ask(doing, kind, 0, payload, |message| elements.add(message));
            match asked {
                Ok(()) => {}
                // One of them is not there; the ones before it have been told.
                Err(FirewallError::Refused { source, .. })
                    if source.raw_os_error() == Some(libc::ENOENT) => {}
                Err(error) => return Err(error),
            }
            found.extend(elements.remaining_ms());
        }
        Ok(found)
    }
}
