-- Facts of the installation as a whole, such as the fingerprint of its join secret.
CREATE TABLE installation (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
);
