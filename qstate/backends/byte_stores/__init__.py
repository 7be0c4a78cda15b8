"""A full backend over any ordered byte store, and RocksDB as the store that comes with qstate."""
