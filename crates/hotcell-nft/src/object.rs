//! Owners of libnftnl's objects: each is freed once, whatever happens.

use std::{ffi::CString, ptr::NonNull};

use nftnl::nftnl_sys as sys;

/// Aborts when memory is out, as the standard library does.
pub(crate) fn allocated<T>(pointer: *mut T) -> NonNull<T> {
    NonNull::new(pointer).unwrap_or_else(|| std::process::abort())
}

/// A name for libnftnl. Names of objects hold no NUL.
pub(crate) fn c_string(name: &str) -> CString {
    CString::new(name).expect("ObjectName and InterfaceName refuse NUL")
}

macro_rules! owner {
    ($name:ident, $raw:ident, $alloc:ident, $free:ident) => {
        /// Owns one of libnftnl's objects.
        pub(crate) struct $name(NonNull<sys::$raw>);

        impl $name {
            pub(crate) fn new() -> Self {
                // SAFETY: takes nothing; the result is owned here and freed in `drop`.
                Self(allocated(unsafe { sys::$alloc() }))
            }

            pub(crate) const fn as_ptr(&self) -> *mut sys::$raw {
                self.0.as_ptr()
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: allocated in `new`, and nothing else frees it.
                unsafe { sys::$free(self.0.as_ptr()) };
            }
        }
    };
}

owner!(Table, nftnl_table, nftnl_table_alloc, nftnl_table_free);
owner!(Chain, nftnl_chain, nftnl_chain_alloc, nftnl_chain_free);
owner!(Rule, nftnl_rule, nftnl_rule_alloc, nftnl_rule_free);
owner!(Set, nftnl_set, nftnl_set_alloc, nftnl_set_free);
