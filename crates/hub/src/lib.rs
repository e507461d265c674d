//! The model store: catalog, local cache, verified downloads.
