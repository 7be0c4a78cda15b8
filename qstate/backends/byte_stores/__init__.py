"""A full backend over any ordered byte store, and RocksDB as the one that comes with qstate."""
