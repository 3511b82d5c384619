-- Previews: apps that belong to another one. Without a reference, since an app's rows may go before its previews'.
ALTER TABLE apps ADD COLUMN preview_of TEXT;
CREATE INDEX apps_by_preview_of ON apps (preview_of) WHERE preview_of IS NOT NULL;
